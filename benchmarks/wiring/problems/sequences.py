"""More sequences: pixels, sound samples, notes, and pairs of answers that are ranked."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case

# Pixels in raster order, with torch's own layers.


class PixelTransformer(nn.Module):
    def __init__(self, bug: str, levels: int = 16, width: int = 32) -> None:
        super().__init__()
        self.pixels = nn.Embedding(levels, width)
        place = 0.02 * torch.randn(36, width)
        if bug == "positions never initialized":
            place = torch.empty(36, width)
        self.place = nn.Parameter(place)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, levels)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        length = x.size(1)
        diagonal = 2 if self.bug == "mask off by one" else 1
        hidden = torch.full((length, length), float("-inf")).triu(diagonal)
        h = self.pixels(x) + self.place[:length]
        if self.bug == "mask built but not passed":
            return self.head(self.body(h))
        return self.head(self.body(h, mask=hidden))


@problem(
    "pixel-transformer",
    "autoregressive images",
    bug("mask off by one", "visible-answer", "body.layers.0.self_attn"),
    bug("mask built but not passed", "visible-answer", "body.layers.0.self_attn"),
    bug("targets not shifted", "shifted-targets", "own position"),
    bug("positions never initialized", "uninitialized-memory", "place"),
    bug("all pixels black", "idle-input or single-answer"),
)
def pixel_transformer(bug: str) -> Case:
    model = PixelTransformer(bug)
    pixels = torch.randint(0, 16, (5, 36))
    if bug == "all pixels black":
        pixels = torch.zeros_like(pixels)
    x, y = pixels[:, :-1].clone(), pixels[:, 1:].clone()
    if bug == "targets not shifted":
        y = x.clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Case(model, x, y, lambda s, t: F.cross_entropy(s.flatten(0, 1), t.flatten()), optimizer)


# Sound sample by sound sample.


class WaveNet(nn.Module):
    def __init__(self, bug: str, channels: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, channels)
        self.dilated = nn.ModuleList(
            nn.Conv1d(channels, 2 * channels, 2, dilation=2**i, padding=2**i) for i in range(4)
        )
        self.mix = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in range(4))
        self.post = nn.Conv1d(channels, 32, 1)
        self.bug = bug

    def forward(self, samples: Tensor) -> Tensor:
        x = self.embed(samples).transpose(1, 2)
        skips = 0
        for dilated, mix in zip(self.dilated, self.mix, strict=True):
            length = x.size(2)
            h = dilated(x)
            h = h[:, :, -length:] if self.bug == "cut on the wrong side" else h[:, :, :length]
            a, b = h.chunk(2, 1)
            z = mix(torch.tanh(a) * torch.sigmoid(b))
            skips = z if self.bug == "skips overwritten" else skips + z
            if self.bug == "residual path forgotten":
                continue
            x = x + z
        return self.post(F.relu(skips))


@problem(
    "wavenet",
    "audio",
    bug("cut on the wrong side", "visible-answer", "dilated.0"),
    bug("residual path forgotten", "discarded-results or idle-modules", note=True),
    bug("labels are the inputs", "shifted-targets", "own position"),
    bug("negative log-likelihood of the scores", "unnormalized-scores", "logits"),
)
def wavenet(bug: str) -> Case:
    model = WaveNet(bug)
    sound = torch.randint(0, 32, (3, 41))
    x, y = sound[:, :-1].clone(), sound[:, 1:].clone()
    if bug == "labels are the inputs":
        y = x.clone()
    loss = F.nll_loss if bug == "negative log-likelihood of the scores" else F.cross_entropy
    return Case(model, x, y, loss, torch.optim.Adam(model.parameters(), lr=1e-3))


# Notes with relative positions, (time, batch) layout and one layer.


class MusicModel(nn.Module):
    def __init__(self, bug: str, width: int = 24) -> None:
        super().__init__()
        self.notes = nn.Embedding(40, width)
        self.attn = nn.MultiheadAttention(width, 3, batch_first=bug == "batch_first with (time, batch)")
        self.lin = nn.Linear(width, width)
        self.out = nn.Linear(width, 40)
        self.distance = nn.Parameter(torch.tensor(0.1))
        self.bug = bug

    def forward(self, notes: Tensor) -> Tensor:
        length = notes.size(1 if self.bug == "batch_first with (time, batch)" else 0)
        place = torch.arange(length)
        bias = -self.distance * (place[:, None] - place[None, :]).float()
        if self.bug == "no relative positions":
            bias = torch.zeros(length, length)
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        if self.bug == "mask added as zeros and ones":
            mask = bias + hidden.float()
        else:
            mask = bias.masked_fill(hidden, float("-inf"))
        x = self.notes(notes)
        a, _ = self.attn(x, x, x, attn_mask=mask)
        if self.bug == "attention result not used":
            return self.out(x + torch.relu(self.lin(x)))
        return self.out(a + torch.relu(self.lin(a)))


@problem(
    "music",
    "language model",
    bug("no relative positions", "order-blind"),
    bug("mask added as zeros and ones", "visible-answer", "attn"),
    bug("batch_first with (time, batch)", "mixed-samples", "attn"),
    bug("attention result not used", "unused-past or discarded-results"),
    bug("asked for the note after the next", "shifted-targets", "2 positions"),
)
def music(bug: str) -> Case:
    model = MusicModel(bug)
    piece = torch.randint(0, 40, (20, 5))
    ahead = 2 if bug == "asked for the note after the next" else 1
    x, y = piece[:18].clone(), piece[ahead : ahead + 18].clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Case(model, x, y, lambda s, t: F.cross_entropy(s.reshape(-1, 40), t.reshape(-1)), optimizer)


# Two answers to one question: the better one must score higher.


class RewardModel(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 20)
        self.rnn = nn.GRU(20, 20, batch_first=True)
        self.score = nn.Linear(20, 1)
        self.bug = bug

    def one(self, ids: Tensor) -> Tensor:
        h, _ = self.rnn(self.embed(ids))
        if self.bug == "scores centered over the batch":
            h = h - h.mean(0, keepdim=True)
        return self.score(h[:, -1]).squeeze(-1)

    def forward(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        if self.bug == "chosen scored twice":
            return torch.stack([self.one(chosen), self.one(chosen)])
        return torch.stack([self.one(chosen), self.one(rejected)])


@problem(
    "reward-model",
    "ranking",
    bug("scores centered over the batch", "mixed-samples", "mean"),
    bug("chosen scored twice", "idle-input", "rejected", note=True),
    bug("score head not in the optimizer", "forgotten-parameters", "score.weight"),
)
def reward_model(bug: str) -> Case:
    model = RewardModel(bug)
    trained = [
        each
        for name, each in model.named_parameters()
        if bug != "score head not in the optimizer" or not name.startswith("score")
    ]
    batch = {"chosen": torch.randint(0, 30, (8, 9)), "rejected": torch.randint(0, 30, (8, 9))}
    return Case(model, batch, None, lambda s: -F.logsigmoid(s[0] - s[1]).mean(), torch.optim.AdamW(trained))


# The step of a discriminator.


class Discriminator(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, 8, 4, stride=2, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(8, 16, 4), nn.LeakyReLU(0.2)
        )
        self.last = nn.Linear(16, 1)
        self.bug = bug

    def forward(self, images: Tensor) -> Tensor:
        h = self.main(images).flatten(1)
        if self.bug == "minibatch statistics on every path":
            h = (h - h.mean(0)) / (h.std(0) + 1e-5)
        return torch.sigmoid(self.last(h))


@problem(
    "discriminator",
    "generative",
    bug("minibatch statistics on every path", "mixed-samples", "mean"),
    bug("sigmoid before BCE with logits", "squashed-logits", "sigmoid"),
    bug("all images labeled real", "single-answer", "100 %", note=True),
    bug("pushed away from the labels", "negated-loss"),
    bug("labels without a column", "mixed-targets", "(20, 1)", "(20,)"),
)
def discriminator(bug: str) -> Case:
    model = Discriminator(bug)
    images = torch.randn(20, 1, 8, 8)
    labels = torch.cat([torch.ones(10, 1), torch.zeros(10, 1)])
    loss = F.binary_cross_entropy
    if bug == "all images labeled real":
        labels = torch.ones_like(labels)
    if bug == "sigmoid before BCE with logits":
        loss = F.binary_cross_entropy_with_logits
    if bug == "pushed away from the labels":
        loss = lambda p, y: -F.binary_cross_entropy(p, y)  # noqa: E731
    if bug == "labels without a column":
        labels, loss = labels.squeeze(1), F.mse_loss
    return Case(
        model, images, labels, loss, torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999))
    )
