"""Answers with a form of their own: functions from points, molecules, tags, quantiles, text after a prefix."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case

# A function from some of its points: the points are averaged to one vector per function.


class NeuralProcess(nn.Module):
    def __init__(self, bug: str, wide: int = 48) -> None:
        super().__init__()
        self.point = nn.Sequential(nn.Linear(2, wide), nn.ReLU(), nn.Linear(wide, wide))
        self.decoder = nn.Sequential(nn.Linear(wide + 1, wide), nn.ReLU(), nn.Linear(wide, 2))
        self.bug = bug

    def forward(self, x_context: Tensor, y_context: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.bug == "values of the context dropped":
            y_context = torch.zeros_like(y_context)
        points = self.point(torch.cat([x_context, y_context], -1))
        if self.bug == "mean over the functions":
            vector = points.mean(0, keepdim=True)[:, :1].expand(len(x), x.shape[1], -1)
        else:
            vector = points.mean(1, keepdim=True).expand(-1, x.shape[1], -1)
        if self.bug == "vector through a list":
            vector = torch.tensor(vector.tolist())
        if self.bug == "vectors repeated down the batch":
            vector = points.mean(1).repeat(x.shape[1], 1).view(len(x), x.shape[1], -1)
        mean, width = self.decoder(torch.cat([vector, x], -1)).chunk(2, -1)
        return mean, 0.05 + 0.95 * F.softplus(width)


@problem(
    "neural-process",
    "neural process",
    bug("values of the context dropped", "idle-input", "y_context", note=True),
    bug("mean over the functions", "mixed-samples", "mean"),
    bug("vector through a list", "blocked-path", "point"),
    bug("vectors repeated down the batch", "mixed-samples"),
    bug("values lost their last axis", "mixed-targets"),
    bug("likelihood is the loss", "negated-loss"),
    bug("points not in the optimizer", "forgotten-parameters", "point.0.weight"),
    part="fourth set",
)
def neural_process(bug: str) -> Case:
    model = NeuralProcess(bug)
    phase, height = torch.rand(16, 1, 1) * 3, torch.rand(16, 1, 1) + 0.5
    x_context, x = torch.rand(16, 7, 1) * 4 - 2, torch.rand(16, 16, 1) * 4 - 2
    y = height * torch.sin(2 * x + phase)
    if bug == "values lost their last axis":
        y = y.squeeze(-1)
    sign = 1 if bug == "likelihood is the loss" else -1

    def loss(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        mean, width = out
        return sign * torch.distributions.Normal(mean, width).log_prob(y).mean()

    left_out = "point" if bug == "points not in the optimizer" else "nothing"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    inputs = {"x_context": x_context, "y_context": height * torch.sin(2 * x_context + phase), "x": x}
    return Case(model, inputs, y, loss, torch.optim.Adam(trained, lr=1e-3))


# Properties of molecules: the atoms of all molecules in one long list, with the number of their molecule.


class MessageLayer(nn.Module):
    def __init__(self, wide: int) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * wide + 4, wide), nn.SiLU())
        self.update = nn.GRUCell(wide, wide)

    def forward(self, h: Tensor, bonds: Tensor, kinds: Tensor) -> Tensor:
        sender, receiver = bonds
        message = self.message(torch.cat([h[sender], h[receiver], kinds], 1))
        return self.update(torch.zeros_like(h).index_add(0, receiver, message), h)


class MoleculeNetwork(nn.Module):
    def __init__(self, bug: str, wide: int = 32) -> None:
        super().__init__()
        self.atom = nn.Embedding(9, wide)
        self.layers = nn.ModuleList(MessageLayer(wide) for _ in range(3))
        if bug == "one layer three times":
            self.layers = nn.ModuleList([MessageLayer(wide)] * 3)
        self.read = nn.Linear(wide, wide)
        self.out = nn.Linear(wide, 1)
        self.bug = bug

    def forward(self, atoms: Tensor, bonds: Tensor, kinds: Tensor, molecule: Tensor) -> Tensor:
        h = start = self.atom(atoms)
        for layer in self.layers:
            h = layer(start if self.bug == "each layer reads the atoms" else h, bonds, kinds)
        h = F.silu(self.read(h))
        if self.bug == "atoms cut to counts":
            h = h.long().float()
        count = int(molecule.max()) + 1
        pooled = h.new_zeros(count, h.shape[1]).index_add(0, molecule, h)
        if self.bug == "bonds ignored":
            pooled = h.new_zeros(count, h.shape[1]).index_add(0, molecule, F.silu(self.read(start)))
        energy = self.out(pooled)
        return energy if self.bug == "energies keep their column" else energy.squeeze(-1)


@problem(
    "molecules",
    "molecules",
    bug("one layer three times", "repeated-module", "layers"),
    bug("each layer reads the atoms", "discarded-results", "layers.0"),
    bug("atoms cut to counts", "step-function or blocked-path"),
    bug("bonds ignored", "discarded-results", "layers"),
    bug("energies keep their column", "mixed-targets"),
    bug("energies in joules", "targets-out-of-scale"),
    bug("atoms not in the optimizer", "forgotten-parameters", "atom.weight"),
    part="fourth set",
)
def molecules(bug: str) -> Case:
    model = MoleculeNetwork(bug)
    sizes = [5, 8, 6, 7, 9, 4, 6, 8, 5, 7]
    molecule = torch.repeat_interleave(torch.arange(10), torch.tensor(sizes))
    atoms = torch.randint(0, 9, (sum(sizes),))
    pairs = []
    for index in range(sum(sizes) - 1):
        if molecule[index] == molecule[index + 1]:
            pairs += [(index, index + 1), (index + 1, index)]
    bonds = torch.tensor(pairs).T
    kinds = F.one_hot(torch.randint(0, 4, (bonds.shape[1] // 2,)).repeat_interleave(2), 4).float()
    energy = torch.zeros(10).index_add(0, molecule, (atoms - 4.0) / 6)
    if bug == "energies in joules":
        energy = energy * 4184
    left_out = "atom" if bug == "atoms not in the optimizer" else "nothing"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    inputs = {"atoms": atoms, "bonds": bonds, "kinds": kinds, "molecule": molecule}
    return Case(model, inputs, energy, F.mse_loss, torch.optim.Adam(trained, lr=1e-3))


# Tags of a photograph, several of which may be right; some of them are much rarer.


def tagger(bug: str) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inside, outside in ((3, 16), (16, 32)):
        layers += [
            nn.Conv2d(inside, outside, 3, 2, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
        ]
    layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(128, 12)]
    if bug.startswith("softmax over"):
        layers.append(nn.Softmax(dim=0 if bug == "softmax over the photographs" else 1))
    if bug == "relu after the scores":
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


@problem(
    "photo-tags",
    "multi-label classification",
    bug("softmax over the photographs", "mixed-samples or squashed-logits", "softmax"),
    bug("softmax over the tags", "squashed-logits", "softmax"),
    bug("relu after the scores", "squashed-logits", "relu"),
    bug("photographs not loaded", "idle-input"),
    bug("no tag anywhere", "single-answer", note=True),
    bug("loss with a minus", "negated-loss"),
    bug("head replaced after the optimizer", "forgotten-parameters or foreign-optimizer", "9.weight"),
    bug("scores viewed instead of transposed", "mixed-targets or mixed-samples"),
    part="fourth set",
)
def photo_tags(bug: str) -> Case:
    model = tagger(bug)
    photos = torch.randn(16, 3, 20, 20)
    tags = (torch.randn(16, 12) + photos.mean((2, 3)).repeat(1, 4) * 20 > 0.6).float()
    if bug == "photographs not loaded":
        photos = torch.zeros_like(photos)
    if bug == "no tag anywhere":
        tags = torch.zeros_like(tags)
    rare = torch.linspace(1, 3, 12)
    sign = -1 if bug == "loss with a minus" else 1

    def loss(scores: Tensor, tags: Tensor) -> Tensor:
        if bug == "scores viewed instead of transposed":
            return F.binary_cross_entropy_with_logits(scores.view(12, 16), tags.t(), pos_weight=rare[:, None])
        return sign * F.binary_cross_entropy_with_logits(scores, tags, pos_weight=rare)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if bug == "head replaced after the optimizer":
        model[9] = nn.Linear(128, 12)
    return Case(model, photos, tags, loss, optimizer)


# Several days ahead, three quantiles each: an LSTM reads the past, another one writes the future.


class QuantileForecast(nn.Module):
    def __init__(self, bug: str, wide: int = 32, ahead: int = 5) -> None:
        super().__init__()
        self.reader = nn.LSTM(
            3, wide, num_layers=2, batch_first=bug != "reader gets the batch as time", dropout=0.1
        )
        self.writer = nn.LSTMCell(2, wide)
        self.quantiles = nn.Linear(wide, 3)
        self.ahead = ahead
        self.bug = bug

    def forward(self, past: Tensor, calendar: Tensor) -> Tensor:
        states, (h, c) = self.reader(past)
        if self.bug == "reader gets the batch as time":
            h, c = states[:, -1], torch.zeros_like(states[:, -1])
        else:
            h, c = h[-1], c[-1]
        if self.bug == "state viewed as (batch, layers)":
            h = self.reader(past)[1][0].reshape(len(past), 2, -1)[:, -1]
        if self.bug == "writer starts from zeros":
            h, c = torch.zeros_like(h), torch.zeros_like(c)
        days = []
        for day in range(self.ahead):
            h, c = self.writer(calendar[:, day], (h, c))
            if self.bug == "state kept as a number":
                h = torch.tensor(h.tolist())
            days.append(self.quantiles(h))
        return torch.stack(days, 1)


@problem(
    "quantile-forecast",
    "quantile regression",
    bug("reader gets the batch as time", "mixed-samples", "reader"),
    bug("state viewed as (batch, layers)", "mixed-samples"),
    bug("writer starts from zeros", "idle-input or discarded-results", note=True),
    bug("state kept as a number", "blocked-path", "writer"),
    bug("sales not standardized", "targets-out-of-scale"),
    bug("quantile loss upside down", "negated-loss"),
    bug("demand of all shops", "mixed-targets"),
    bug("writer not in the optimizer", "forgotten-parameters", "writer.weight_ih"),
    part="fourth set",
)
def quantile_forecast(bug: str) -> Case:
    model = QuantileForecast(bug)
    phase = torch.rand(20, 1) * 6
    days = torch.arange(25)
    series = torch.sin(days * 0.9 + phase) + 0.1 * torch.randn(20, 25)
    calendar = torch.stack([torch.sin(days * 0.9), torch.cos(days * 0.9)], -1).expand(20, 25, 2)
    past = torch.cat([series[:, :20, None], calendar[:, :20]], -1)
    future = series[:, 20:]
    if bug == "sales not standardized":
        future = 4000 + 900 * future
    levels = torch.tensor([0.1, 0.5, 0.9])

    def pinball(out: Tensor, future: Tensor) -> Tensor:
        gap = future[..., None] - out
        if bug == "demand of all shops":
            gap = future[:, None, :, None] - out[None]
        high, low = levels * gap, (levels - 1) * gap
        if bug == "quantile loss upside down":
            return torch.min(high, low).mean()
        return torch.max(high, low).mean()

    left_out = "writer" if bug == "writer not in the optimizer" else "nothing"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    inputs = {"past": past, "calendar": calendar[:, 20:].contiguous()}
    return Case(model, inputs, future, pinball, torch.optim.Adam(trained, lr=3e-3))


# Text after a prefix that is visible as a whole: only the rest is asked for.


class PrefixBlock(nn.Module):
    def __init__(self, bug: str, wide: int, heads: int = 4) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.qkv = nn.Linear(wide, 3 * wide)
        nn.init.normal_(self.qkv.weight, std=wide**-0.5)
        self.proj = nn.Linear(wide, wide)
        self.up, self.down = nn.Linear(wide, 4 * wide), nn.Linear(4 * wide, wide)
        self.heads = heads
        self.bug = bug

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        n, steps, wide = x.shape
        size = wide // self.heads
        q, k, v = self.qkv(self.ln1(x)).view(n, steps, 3, self.heads, size).permute(2, 0, 3, 1, 4)
        score = q @ k.transpose(-1, -2)
        if self.bug != "scores not scaled":
            score = score / math.sqrt(size)
        score = score.masked_fill(~allowed[:, None], float("-inf"))
        mixed = score.softmax(-1) @ v
        if self.bug == "heads joined without a transpose":
            mixed = mixed.reshape(n, steps, wide)
        else:
            mixed = mixed.transpose(1, 2).reshape(n, steps, wide)
        x = x + self.proj(mixed)
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class PrefixLM(nn.Module):
    def __init__(self, bug: str, words: int = 45, wide: int = 48, steps: int = 18) -> None:
        super().__init__()
        self.words = nn.Embedding(words, wide)
        self.places = nn.Parameter(torch.randn(steps, wide) * 0.5)
        self.blocks = nn.ModuleList(PrefixBlock(bug, wide) for _ in range(2))
        self.norm = nn.LayerNorm(wide)
        self.head = nn.Linear(wide, words)
        self.bug = bug

    def forward(self, ids: Tensor, prefix: Tensor) -> Tensor:
        steps = ids.shape[1]
        place = torch.arange(steps)
        causal = place[None, :] <= place[:, None]
        inside = place[None, None, :] < prefix[:, None, None]
        allowed = causal[None] | inside
        if self.bug == "prefix twice as long in the mask":
            allowed = causal[None] | (place[None, None, :] < 2 * prefix[:, None, None])
        if self.bug == "prefix inverted in the mask":
            allowed = causal[None] | ~inside
        if self.bug == "only the own word visible":
            allowed = torch.eye(steps, dtype=torch.bool)[None].expand(len(ids), -1, -1)
        x = self.words(ids) + self.places
        for block in self.blocks:
            x = block(x, allowed)
        return self.head(self.norm(x))


@problem(
    "prefix-lm",
    "prefix language model",
    bug("heads joined without a transpose", "visible-answer"),
    bug("scores not scaled", "unscaled-attention", "blocks"),
    bug("prefix twice as long in the mask", "visible-answer"),
    bug("prefix inverted in the mask", "visible-answer"),
    bug("only the own word visible", "unused-past"),
    bug("asked two words ahead", "shifted-targets", "2"),
    bug("asked for the words themselves", "shifted-targets", "own position"),
    bug("loss counts nothing but the prefix", "single-answer or shifted-targets or visible-answer"),
    bug("places forgotten by the optimizer", "forgotten-parameters", "places"),
    part="fourth set",
)
def prefix_lm(bug: str) -> Case:
    model = PrefixLM(bug)
    text = torch.randint(0, 45, (12, 20))
    ids = text[:, :18]
    labels = text[:, 1:19].clone()
    if bug == "asked two words ahead":
        labels = text[:, 2:20].clone()
    if bug == "asked for the words themselves":
        labels = ids.clone()
    prefix = torch.randint(3, 8, (12,))
    place = torch.arange(18)
    hidden = place[None] < prefix[:, None] - 1
    if bug == "loss counts nothing but the prefix":
        hidden = ~hidden
    labels[hidden] = -100

    def loss(scores: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten())

    left_out = "places" if bug == "places forgotten by the optimizer" else "nothing"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    inputs = {"ids": ids, "prefix": prefix}
    return Case(model, inputs, labels, loss, torch.optim.AdamW(trained, lr=1e-3))
