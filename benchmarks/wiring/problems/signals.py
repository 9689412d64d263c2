"""Sound, sensors and time series."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case

# Speech commands from raw sound.


class M5(nn.Module):
    def __init__(self, bug: str, n_output: int = 7, n_channel: int = 12) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(1, n_channel, 16, stride=4)
        self.bn1 = nn.BatchNorm1d(n_channel)
        self.conv2 = nn.Conv1d(n_channel, n_channel, 3)
        self.bn2 = nn.BatchNorm1d(n_channel)
        self.fc1 = nn.Linear(n_channel, n_output)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool1d(F.relu(self.bn1(self.conv1(x))), 4)
        x = F.relu(self.bn2(self.conv2(x)))
        if self.bug == "pooled over the batch":
            x = x - x.mean(0, keepdim=True)
        x = F.avg_pool1d(x, x.shape[-1]).permute(0, 2, 1)
        x = self.fc1(x)
        if self.bug == "log_softmax over the length":
            return F.log_softmax(x, dim=1)
        if self.bug == "plain softmax":
            return F.softmax(x, dim=2)
        return F.log_softmax(x, dim=2)


@problem(
    "speech-commands",
    "audio",
    bug("pooled over the batch", "mixed-samples", "mean"),
    bug("log_softmax over the length", "unnormalized-scores or head-only-gradient", "nll_loss"),
    bug("plain softmax", "unnormalized-scores", "nll_loss", "probabilities"),
    bug("silence", "idle-input", "input"),
    bug("loss negated", "negated-loss"),
    bug("checked in eval mode", "evaluation-mode", "bn1"),
)
def speech_commands(bug: str) -> Case:
    model = M5(bug)
    waves = torch.randn(10, 1, 400)
    if bug == "silence":
        waves = torch.zeros_like(waves)
    if bug == "checked in eval mode":
        model.eval()
    sign = -1 if bug == "loss negated" else 1
    return Case(
        model,
        waves,
        torch.randint(0, 7, (10,)),
        lambda out, target: sign * F.nll_loss(out.squeeze(1), target),
        torch.optim.Adam(model.parameters(), lr=1e-2),
    )


# Speech recognition with CTC.


class Recognizer(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.conv = nn.Conv1d(13, 24, 3, padding=1)
        self.rnn = nn.GRU(24, 16, batch_first=bug != "frames taken for samples", bidirectional=True)
        self.fc = nn.Linear(32, 9)
        self.bug = bug

    def forward(self, frames: Tensor) -> Tensor:
        x = F.relu(self.conv(frames)).transpose(1, 2)
        x = self.fc(self.rnn(x)[0]).transpose(0, 1)
        return x if self.bug == "log_softmax forgotten" else x.log_softmax(-1)


@problem(
    "speech-ctc",
    "audio",
    bug("frames taken for samples", "mixed-samples", "rnn"),
    bug("log_softmax forgotten", "unnormalized-scores", "ctc_loss"),
    bug("recognizer not in the optimizer", "forgotten-parameters", "fc.weight"),
)
def speech_ctc(bug: str) -> Case:
    model = Recognizer(bug)
    words = torch.randint(1, 9, (5, 6))

    def loss(scores: Tensor, words: Tensor) -> Tensor:
        frames = torch.full((5,), scores.size(0))
        return F.ctc_loss(scores, words, frames, torch.full((5,), 6))

    trained = [
        each
        for name, each in model.named_parameters()
        if bug != "recognizer not in the optimizer" or not name.startswith("fc")
    ]
    return Case(model, torch.randn(5, 13, 22), words, loss, torch.optim.AdamW(trained, lr=1e-3))


# The next value of a series, one answer per window.


class LSTMForecaster(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 20, num_layers=2, batch_first=bug != "batch_first forgotten")
        self.linear = nn.Linear(20, 1)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        out, (h, _) = self.lstm(x)
        if self.bug == "last sample instead of last step":
            return self.linear(out[-1, -1]).expand(len(x), 1)
        if self.bug == "state viewed with the layers":
            return self.linear(h.reshape(len(x), -1, 20)[:, -1])
        return self.linear(out[:, -1])


@problem(
    "lstm-forecast",
    "time series",
    bug("batch_first forgotten", "mixed-samples", "lstm"),
    bug("last sample instead of last step", "mixed-samples"),
    bug("state viewed with the layers", "mixed-samples", "reshape"),
    bug("vector of answers", "mixed-targets", "(14, 1)", "(14,)"),
    bug("prices in cents", "targets-out-of-scale"),
    bug("windows of zeros", "idle-input", "input"),
)
def lstm_forecast(bug: str) -> Case:
    model = LSTMForecaster(bug)
    x, y = torch.randn(14, 10, 3), torch.randn(14, 1)
    if bug == "vector of answers":
        y = y[:, 0]
    if bug == "prices in cents":
        y = 9_000 + 800 * y
    if bug == "windows of zeros":
        x = torch.zeros_like(x)
    return Case(model, x, y, nn.MSELoss(), torch.optim.Adam(model.parameters(), lr=1e-3))


# Every step predicts the next value of the series.


class StepForecaster(nn.Module):
    def __init__(self, bug: str, width: int = 24) -> None:
        super().__init__()
        self.inp = nn.Linear(2, width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.position = nn.Parameter(torch.randn(32, width))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 2)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        if self.bug != "time not encoded":
            h = h + self.position[: x.size(1)]
        hidden = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        if self.bug == "mask transposed":
            hidden = hidden.t()
        if self.bug == "only the own step is visible":
            hidden = ~torch.eye(x.size(1), dtype=torch.bool)
        a, _ = self.attention(h, h, h, attn_mask=hidden)
        return self.out(self.norm(h + a))


@problem(
    "step-forecast",
    "time series",
    bug("mask transposed", "visible-answer", "attention"),
    bug("only the own step is visible", "unused-past"),
    bug("time not encoded", "order-blind"),
    bug("asked for the present", "shifted-targets", "own position"),
    bug("asked for the day after tomorrow", "shifted-targets", "2 positions"),
)
def step_forecast(bug: str) -> Case:
    model = StepForecaster(bug)
    series = torch.randn(6, 19, 2).cumsum(1) * 0.3
    ahead = {"asked for the present": 0, "asked for the day after tomorrow": 2}.get(bug, 1)
    x, y = series[:, :16].clone(), series[:, ahead : ahead + 16].clone()
    return Case(model, x, y, F.mse_loss, torch.optim.AdamW(model.parameters(), lr=1e-3))


# Activity from worn sensors: convolution, then a recurrent layer.


class ConvLSTM(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv1d(6, 16, 5, padding=2), nn.BatchNorm1d(16), nn.ReLU())
        self.rnn = nn.GRU(16, 16)
        self.dropout = nn.Dropout(0.3)
        self.classify = nn.Linear(16, 5)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        h = self.features(x)  # (batch, channels, time)
        if self.bug == "batch and time exchanged":
            h = h.permute(0, 2, 1)
        elif self.bug == "view to (time, batch)":
            h = h.contiguous().view(x.size(2), x.size(0), 16)
        else:
            h = h.permute(2, 0, 1)
        out, _ = self.rnn(h)
        if self.bug == "batch and time exchanged":
            return self.classify(self.dropout(out[:, -1]))
        return self.classify(self.dropout(out[-1]))


@problem(
    "activity",
    "sensors",
    bug("batch and time exchanged", "mixed-samples", "rnn"),
    bug("view to (time, batch)", "mixed-samples", "view"),
    bug("left in eval mode", "evaluation-mode", "features.1"),
    bug("softmax in the loss", "squashed-logits", "softmax"),
    bug("sorted by class", "single-answer", "100 %"),
    bug("features left out of the optimizer behind the front", "forgotten-parameters", "rnn.weight_ih_l0"),
)
def activity(bug: str) -> Case:
    model = ConvLSTM(bug)
    labels = torch.randint(0, 5, (18,))
    if bug == "sorted by class":
        labels = torch.zeros_like(labels)
    if bug == "left in eval mode":
        model.eval()

    def loss(scores: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(F.softmax(scores, 1) if bug == "softmax in the loss" else scores, labels)

    trained = [
        each
        for name, each in model.named_parameters()
        if bug != "features left out of the optimizer behind the front" or not name.startswith("rnn")
    ]
    return Case(model, torch.randn(18, 6, 20), labels, loss, torch.optim.Adam(trained, lr=1e-3))
