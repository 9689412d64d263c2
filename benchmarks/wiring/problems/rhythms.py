"""Things in time: letters of a text, the load of a power grid, spoken digits as spectrograms."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case

# Letters: an LSTM that guesses the next one.

TEXT = (
    "it was the best of times, it was the worst of times, it was the age of wisdom, it was the age of "
    "foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season of light, "
    "it was the season of darkness, it was the spring of hope, it was the winter of despair, we had "
    "everything before us, we had nothing before us, we were all going direct to heaven, we were all going "
    "direct the other way"
)
CHARS = sorted(set(TEXT))


class CharRNN(nn.Module):
    def __init__(self, bug: str, hidden_size: int = 64) -> None:
        super().__init__()
        self.encoder = nn.Embedding(len(CHARS), hidden_size)
        both = bug == "reads in both directions"
        self.rnn = nn.LSTM(hidden_size, hidden_size // 2 if both else hidden_size, bidirectional=both)
        self.decoder = nn.Linear(hidden_size, len(CHARS))
        self.bug = bug

    def forward(self, inp: Tensor) -> Tensor:
        batch_size, length = inp.shape
        encoded = self.encoder(inp)
        if self.bug == "one letter chosen from its vector":
            encoded = F.one_hot(encoded.argmax(-1), encoded.size(-1)).float()
        if self.bug == "viewed with the time first":
            encoded = encoded.view(length, batch_size, -1)
        else:
            encoded = encoded.transpose(0, 1)
        if self.bug == "state not handed to the next letter":
            output = torch.cat([self.rnn(letter.unsqueeze(0))[0] for letter in encoded])
        else:
            output, (hidden, _) = self.rnn(encoded)
        if self.bug == "last state for every letter":
            output = hidden[-1].expand_as(output)
        return self.decoder(output).transpose(0, 1)


def char_loss(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.reshape(-1, len(CHARS)), target.reshape(-1))


def char_likelihood(output: Tensor, target: Tensor) -> Tensor:
    return output.log_softmax(-1).gather(2, target.unsqueeze(2)).mean()


@problem(
    "char-lstm",
    "language model",
    bug("viewed with the time first", "mixed-samples or scrambled-axes"),
    bug("state not handed to the next letter", "unused-past"),
    bug("reads in both directions", "visible-answer"),
    bug("last state for every letter", "visible-answer"),
    bug("asked for the letter after the next", "shifted-targets"),
    bug("one letter chosen from its vector", "step-function or blocked-path"),
    bug("likelihood minimized", "negated-loss or unbounded-loss"),
    bug("optimizer of the model of another fold", "foreign-optimizer or forgotten-parameters"),
    part="sixth set",
)
def char_lstm(bug: str) -> Case:
    folds = [CharRNN(bug) for _ in range(2)]
    letters = torch.tensor([CHARS.index(c) for c in TEXT])
    ahead = 2 if bug == "asked for the letter after the next" else 1
    starts = torch.randint(0, len(TEXT) - 33, (16,)).tolist()
    inp = torch.stack([letters[i : i + 30] for i in starts])
    target = torch.stack([letters[i + ahead : i + ahead + 30] for i in starts])
    other = 0 if bug == "optimizer of the model of another fold" else 1
    optimizer = torch.optim.Adam(folds[other].parameters(), lr=5e-3)
    loss = char_likelihood if bug == "likelihood minimized" else char_loss
    return Case(folds[1], inp, target, loss, optimizer)


# The load of a power grid: causal convolutions with growing dilation, one hour ahead at every hour.


class Chomp1d(nn.Module):
    def __init__(self, chomp_size: int, bug: str) -> None:
        super().__init__()
        self.chomp_size = chomp_size
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        if self.bug == "wrong end cut off":
            return x[:, :, self.chomp_size :].contiguous()
        return x[:, :, : -self.chomp_size].contiguous()


class TemporalBlock(nn.Module):
    def __init__(self, channels: int, dilation: int, bug: str) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 3, padding=2 * dilation, dilation=dilation)
        self.chomp = Chomp1d(2 * dilation, bug)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        if self.bug == "weights on a grid of sixteenths":
            weight = torch.round(self.conv.weight * 16) / 16
            out = F.conv1d(x, weight, self.conv.bias, 1, self.conv.padding, self.conv.dilation)
        else:
            out = self.conv(x)
        return x + F.relu(self.chomp(out))


class TCN(nn.Module):
    def __init__(self, bug: str, channels: int = 24) -> None:
        super().__init__()
        self.inp = nn.Conv1d(3, channels, 1)
        self.blocks = nn.ModuleList(TemporalBlock(channels, 2**i, bug) for i in range(4))
        self.out = nn.Conv1d(channels, 1, 1)
        self.bug = bug

    def forward(self, load: Tensor, calendar: Tensor) -> Tensor:
        if self.bug == "calendar replaced by zeros":
            calendar = torch.zeros_like(calendar)
        x = torch.cat([load.unsqueeze(-1), calendar], dim=-1)
        if self.bug == "channels viewed instead of transposed":
            x = x.view(x.size(0), x.size(2), x.size(1))
        else:
            x = x.transpose(1, 2)
        x = self.inp(x)
        for block in self.blocks[:-1] if self.bug == "loop ends before the last block" else self.blocks:
            x = block(x)
        x = self.out(x)
        return x if self.bug == "forecast keeps its channel" else x.squeeze(1)


@problem(
    "power-tcn",
    "forecasting",
    bug("wrong end cut off", "visible-answer or unused-past"),
    bug("asked for the load it is given", "shifted-targets or visible-answer"),
    bug("channels viewed instead of transposed", "visible-answer or scrambled-axes"),
    bug("forecast keeps its channel", "mixed-targets", "(24, 1, 32)", "(24, 32)"),
    bug("loop ends before the last block", "idle-modules", "blocks.3", note=True),
    bug("weights on a grid of sixteenths", "step-function", "round"),
    bug("load in kilowatts", "targets-out-of-scale"),
    bug("calendar replaced by zeros", "idle-input", "calendar", note=True),
    part="sixth set",
)
def power_tcn(bug: str) -> Case:
    model = TCN(bug)
    hour = torch.randint(0, 168, (24, 1)) + torch.arange(33)
    calendar = torch.stack([torch.sin(hour * math.pi / 12), torch.cos(hour * math.pi / 84)], dim=-1)
    series = 0.8 * torch.sin(hour * math.pi / 12 + 1) + 0.5 * calendar[..., 1]
    shock = 0.3 * torch.randn(24, 33)
    for t in range(1, 33):
        shock[:, t] += 0.9 * shock[:, t - 1]
    series = series + shock
    load, target = series[:, :-1], series[:, 1:]
    if bug == "asked for the load it is given":
        target = series[:, :-1].clone()
    if bug == "load in kilowatts":
        target = target * 9_000 + 40_000
    inputs = {"load": load, "calendar": calendar[:, :-1].contiguous()}
    return Case(model, inputs, target, nn.MSELoss(), torch.optim.Adam(model.parameters(), lr=3e-3))


# Spoken digits: a learned filter bank over the spectrum, then convolutions over time.


class SpeechNet(nn.Module):
    def __init__(self, bug: str, classes: int = 6, n_filters: int = 20, wide: int = 32) -> None:
        super().__init__()
        if bug == "filters of a FloatTensor":
            self.fbank = nn.Parameter(torch.FloatTensor(n_filters, 33))
        else:
            self.fbank = nn.Parameter(torch.rand(n_filters, 33) / 8)
        self.conv1 = nn.Conv1d(n_filters, wide, 3, padding=1)
        self.bn1 = nn.BatchNorm1d(wide)
        self.conv2 = nn.Conv1d(wide, wide, 3, padding=1)
        self.conv3 = self.conv2 if bug == "third layer is the second" else nn.Conv1d(wide, wide, 3, padding=1)
        self.fc = nn.Linear(wide, classes)
        self.bug = bug

    def filtered(self, spec: Tensor) -> Tensor:
        return torch.log(self.fbank.abs() @ spec + 1e-3)

    def forward(self, wave: Tensor) -> Tensor:
        window = torch.hann_window(64)
        spec = torch.stft(wave, 64, 32, window=window, return_complex=True).abs()
        with torch.set_grad_enabled(self.bug != "filters applied as preprocessing"):
            x = self.filtered(spec)
        x = x - x.mean(dim=0 if self.bug == "mean of each bin over the clips" else -1, keepdim=True)
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.conv2(x))
        x = F.relu(self.conv3(x))
        if self.bug == "place of the maximum instead of its value":
            x = x.max(dim=-1)[1].float()
        else:
            x = x.max(dim=-1)[0]
        x = self.fc(x).unsqueeze(1)
        if self.bug == "scores handed on without log_softmax":
            return x.squeeze(1)
        return F.log_softmax(x, dim=1 if self.bug == "log_softmax over an axis of one" else 2).squeeze(1)


@problem(
    "spoken-digits",
    "audio CNN",
    bug("scores handed on without log_softmax", "unnormalized-scores or unbounded-loss"),
    bug("log_softmax over an axis of one", "step-function or idle-input or motionless-step"),
    bug("filters applied as preprocessing", "blocked-path", "fbank"),
    bug("filters of a FloatTensor", "uninitialized-memory", "fbank"),
    bug("mean of each bin over the clips", "mixed-samples"),
    bug("each label encoded by itself", "single-answer"),
    bug("place of the maximum instead of its value", "step-function or blocked-path or head-only-gradient"),
    bug("third layer is the second", "repeated-module", "conv", note=True),
    part="sixth set",
)
def spoken_digits(bug: str) -> Case:
    model = SpeechNet(bug)
    label = torch.arange(30) % 6
    time = torch.arange(1024) / 1024
    pitch = 40 + 30 * (label % 3)[:, None] + 5 * torch.rand(30, 1)
    slope = torch.where(label < 3, 60, -20)[:, None]
    wave = torch.sin(2 * math.pi * (pitch + slope * time) * time) + 0.1 * torch.randn(30, 1024)
    names = [f"digit {each}" for each in label.tolist()]
    if bug == "each label encoded by itself":
        encoded = [sorted({name}).index(name) for name in names]
    else:
        encoded = [sorted(set(names)).index(name) for name in names]
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=1e-4)
    return Case(model, wave, torch.tensor(encoded), F.nll_loss, optimizer)
