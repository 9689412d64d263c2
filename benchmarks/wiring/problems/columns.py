"""Rows and nodes: customers with categories, patients with uncertain outcomes, papers that cite, sparse labels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case

# Customers who leave: named categories and numbers, one probability.

SIZES = {"plan": 4, "region": 7, "device": 5}


class ChurnNet(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        tables = {name: nn.Embedding(size, 5) for name, size in SIZES.items()}
        self.tables = tables if bug == "tables in a dict" else nn.ModuleDict(tables)
        self.norm = nn.BatchNorm1d(4)
        self.hidden = nn.Linear(5 * len(SIZES) + 4, 32)
        self.final = nn.Linear(32, 1)
        self.bug = bug

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        parts = []
        for column, table in enumerate(self.tables.values()):
            index = categories[:, 0 if self.bug == "first column for every table" else column]
            if self.bug == "only the last table is kept":
                parts = [table(index).repeat(1, 3)]
            else:
                parts.append(table(index))
        if self.bug == "standardized with this batch":
            numbers = (numbers - numbers.mean(0)) / numbers.std(0)
        elif self.bug != "income in dollars, norm removed":
            numbers = self.norm(numbers)
        x = torch.cat([*parts, numbers], 1)
        if self.bug == "hidden layer made in forward":
            x = nn.Linear(x.shape[1], 32)(x).relu()
        else:
            x = self.hidden(x).relu()
        if self.bug == "hidden units cut to whole numbers":
            x = x.floor()
        return self.final(x)


def log_loss(scores: Tensor, left: Tensor) -> Tensor:
    return (F.softplus(scores) - scores * left).mean()


@problem(
    "churn",
    "tabular classification",
    bug("tables in a dict", "unregistered-parameters", "(4, 5)"),
    bug("first column for every table", "idle-input", "categories", note=True),
    bug("only the last table is kept", "discarded-results", "tables.plan"),
    bug("standardized with this batch", "mixed-samples"),
    bug("income in dollars, norm removed", "input-out-of-scale", "numbers"),
    bug("hidden layer made in forward", "unregistered-parameters or idle-modules"),
    bug("hidden units cut to whole numbers", "step-function", "floor"),
    bug("answers without the column", "mixed-targets", "(60, 1)", "(60,)"),
    bug("missing values not filled", "non-finite", "numbers"),
    bug("answer among the numbers", "visible-answer"),
    bug("rate of zero from an old schedule", "motionless-step"),
    part="fifth set",
)
def churn(bug: str) -> Case:
    model = ChurnNet(bug)
    categories = torch.stack([torch.randint(0, size, (60,)) for size in SIZES.values()], 1)
    numbers = torch.randn(60, 4)
    score = numbers[:, 0] - numbers[:, 1] + (categories[:, 0] == 2) * 2.0 - (categories[:, 1] > 3) * 1.5
    left = (score + 0.3 * torch.randn(60) > 0).float().unsqueeze(1)
    if bug == "income in dollars, norm removed":
        numbers = numbers * torch.tensor([1.0, 20_000.0, 1.0, 1.0]) + torch.tensor([0.0, 50_000.0, 0.0, 0.0])
    if bug == "missing values not filled":
        numbers[torch.rand(60) < 0.1, 3] = float("nan")
    if bug == "answer among the numbers":
        numbers[:, 3] = left[:, 0]
    if bug == "answers without the column":
        left = left.squeeze(1)
    rate = 0.0 if bug == "rate of zero from an old schedule" else 1e-2
    inputs = {"categories": categories, "numbers": numbers}
    return Case(model, inputs, left, log_loss, torch.optim.AdamW(model.parameters(), lr=rate))


# The progress of a disease with its uncertainty: two heads, a Gaussian likelihood.


class DiseaseNet(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.mean = nn.Linear(32, 1)
        self.spread = nn.Linear(32, 1)
        self.bug = bug

    def forward(self, patients: Tensor) -> tuple[Tensor, Tensor]:
        if self.bug == "features divided by the norm of the batch":
            patients = patients / patients.norm() * 20
        if self.bug == "first feature expanded over all":
            patients = patients[:, :1].expand(-1, 10)
        h = self.trunk(patients)
        mean = self.mean(h)
        if self.bug == "relu after the mean":
            mean = mean.relu()
        spread = self.spread(h)
        if self.bug == "spread detached":
            spread = spread.detach()
        variance = spread if self.bug == "variance without softplus" else F.softplus(spread) + 1e-3
        if self.bug == "mean keeps its column":
            return mean, variance
        return mean.squeeze(-1), variance.squeeze(-1)


@problem(
    "disease-progress",
    "probabilistic regression",
    bug("mean keeps its column", "mixed-targets", "(64, 1)", "(64,)"),
    bug("outcomes not standardized", "targets-out-of-scale"),
    bug("variance without softplus", "non-finite"),
    bug("spread detached", "blocked-path or discarded-results", "spread"),
    bug("relu after the mean", "unreachable-targets", "relu"),
    bug("features divided by the norm of the batch", "mixed-samples", "norm"),
    bug("first feature expanded over all", "idle-input", "patients", note=True),
    bug("patients are all zero", "idle-input"),
    bug("log likelihood returned without a minus", "negated-loss"),
    bug("weights of the patients as a column", "mixed-targets"),
    bug("heads not in the optimizer", "forgotten-parameters", "mean.weight"),
    part="fifth set",
)
def disease_progress(bug: str) -> Case:
    model = DiseaseNet(bug)
    data = load_diabetes()
    rows = torch.randperm(len(data.target))[:64]
    patients = torch.tensor(data.data, dtype=torch.float32)[rows] * len(data.target) ** 0.5
    outcomes = torch.tensor(data.target, dtype=torch.float32)[rows]
    if bug != "outcomes not standardized":
        outcomes = (outcomes - outcomes.mean()) / outcomes.std()
    if bug == "patients are all zero":
        patients = torch.zeros_like(patients)
    weights = 0.5 + torch.rand(64)
    if bug == "weights of the patients as a column":
        weights = weights.unsqueeze(1)

    def loss(out: tuple[Tensor, Tensor], targets: tuple[Tensor, Tensor]) -> Tensor:
        mean, variance = out
        outcomes, weights = targets
        likelihood = -0.5 * (variance.log() + (outcomes - mean) ** 2 / variance)
        total = (weights * likelihood).mean()
        return total if bug == "log likelihood returned without a minus" else -total

    parts = model.trunk if bug == "heads not in the optimizer" else model
    return Case(model, patients, (outcomes, weights), loss, torch.optim.Adam(parts.parameters(), lr=3e-3))


# Papers that cite each other: attention over edges, given as pairs of nodes.


class EdgeAttention(nn.Module):
    def __init__(self, inside: int, outside: int, bug: str) -> None:
        super().__init__()
        self.lin = nn.Linear(inside, outside, bias=False)
        self.att = nn.Parameter(torch.empty(2 * outside))
        if bug != "attention vector without reset_parameters":
            nn.init.normal_(self.att, std=0.2)
        self.bug = bug

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.lin(x)
        source, target = edge_index
        if self.bug == "edges replaced by loops":
            source = target = torch.arange(len(x))
        score = F.leaky_relu(torch.cat([h[source], h[target]], 1) @ self.att, 0.2)
        weight = (score - score.max().detach()).exp()
        total = torch.zeros(len(x)).index_add(0, target, weight)
        alpha = weight / (total[target] + 1e-9)
        if self.bug == "weights of the edges rounded":
            alpha = alpha.round()
        return torch.zeros_like(h).index_add(0, target, alpha[:, None] * h[source])


class CitationGAT(nn.Module):
    def __init__(self, bug: str, features: int = 20, classes: int = 4) -> None:
        super().__init__()
        convs = [EdgeAttention(features, 24, bug), EdgeAttention(24, 24, bug)]
        self.convs = tuple(convs) if bug == "layers in a tuple" else nn.ModuleList(convs)
        self.out = nn.Linear(24, classes)
        self.bug = bug

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = F.elu(self.convs[0](x, edge_index))
        if self.bug == "messages through a list":
            h = torch.tensor(h.tolist())
        second = F.elu(self.convs[1](h, edge_index))
        out = self.out(h if self.bug == "second layer left unused" else h + second)
        return out if self.bug == "raw scores into nll_loss" else F.log_softmax(out, 1)


@problem(
    "citation-gat",
    "graph",
    bug("attention vector without reset_parameters", "uninitialized-memory", "att"),
    bug("edges replaced by loops", "idle-input", "edge_index", note=True),
    bug("weights of the edges rounded", "step-function", "round"),
    bug("layers in a tuple", "unregistered-parameters"),
    bug("messages through a list", "blocked-path", "convs.0"),
    bug("second layer left unused", "discarded-results", "convs.1"),
    bug("raw scores into nll_loss", "unnormalized-scores", "nll_loss"),
    bug("mask of another split is empty", "non-finite or single-answer"),
    bug("subject of every paper is one", "single-answer", "100 %"),
    bug("optimizer of the network before", "foreign-optimizer or forgotten-parameters"),
    part="fifth set",
)
def citation_gat(bug: str) -> Case:
    earlier, model = CitationGAT(""), CitationGAT(bug)
    subject = torch.arange(60) % 4
    x = 0.7 * F.one_hot(subject, 20).float() + 0.6 * torch.randn(60, 20)
    same = subject[:, None] == subject
    linked = (torch.rand(60, 60) < torch.where(same, 0.25, 0.02)) | torch.eye(60, dtype=torch.bool)
    train = torch.rand(60) < 0.7
    if bug == "mask of another split is empty":
        train = torch.zeros_like(train)
    if bug == "subject of every paper is one":
        subject = torch.ones_like(subject)
    inputs = {"x": x, "edge_index": linked.nonzero().t()}
    trained = earlier if bug == "optimizer of the network before" else model

    def loss(scores: Tensor, subject: Tensor) -> Tensor:
        return F.nll_loss(scores[train], subject[train])

    optimizer = torch.optim.Adam(trained.parameters(), lr=1e-2, weight_decay=5e-4)
    return Case(model, inputs, subject, loss, optimizer)


# Land use of each pixel: rare classes have weights, and pixels without a label are ignored.


def land_net(bug: str, wide: int = 16) -> nn.Sequential:
    last: list[nn.Module] = [nn.Conv2d(wide, 5, 1)]
    if bug == "softmax over height":
        last.append(nn.Softmax(dim=2))
    if bug == "tanh kept from the hidden layers":
        last.append(nn.Tanh())
    middle = nn.Conv2d(wide, wide, 3, padding=1)
    if bug == "middle layer filled with one value":
        nn.init.constant_(middle.weight, 0.01)
    return nn.Sequential(
        nn.Conv2d(4, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU(), middle, nn.ReLU(), *last
    )


@problem(
    "land-use",
    "segmentation",
    bug("softmax over height", "squashed-logits", "softmax"),
    bug("tanh kept from the hidden layers", "squashed-logits", "tanh"),
    bug("middle layer filled with one value", "constant-init", "3"),
    bug("no pixel has a label", "single-answer or non-finite"),
    bug("unlabeled pixels became class 0", "single-answer", note=True),
    bug("mean of the pictures' means", "uneven-reduction", note=True),
    bug("sum over all pixels", "summed-loss", note=True),
    bug("scores flattened with the channels first", "mixed-targets or mixed-samples"),
    part="fifth set",
)
def land_use(bug: str) -> Case:
    model = land_net(bug)
    coarse = torch.multinomial(torch.tensor([0.5, 0.2, 0.15, 0.1, 0.05]), 10 * 9, replacement=True)
    labels = (
        coarse.view(10, 1, 3, 3).float().repeat_interleave(4, 2).repeat_interleave(4, 3).squeeze(1).long()
    )
    tint = torch.randn(5, 4)
    bands = tint[labels].permute(0, 3, 1, 2) + 0.5 * torch.randn(10, 4, 12, 12)
    share = torch.rand(10, 1, 1) * 0.9
    labels = labels.masked_fill(torch.rand(10, 12, 12) < share, -1)
    if bug == "no pixel has a label":
        labels = torch.full_like(labels, -1)
    if bug == "unlabeled pixels became class 0":
        labels = torch.where(torch.rand(10, 12, 12) < 0.95, 0, labels.clamp(min=0))
    weight = torch.tensor([0.5, 1.0, 1.2, 1.5, 2.0])

    def loss(scores: Tensor, labels: Tensor) -> Tensor:
        if bug == "mean of the pictures' means":
            pairs = zip(scores, labels, strict=True)
            means = [F.cross_entropy(s[None], y[None], weight, ignore_index=-1) for s, y in pairs]
            return torch.stack(means).mean()
        if bug == "scores flattened with the channels first":
            return F.cross_entropy(scores.reshape(-1, 5), labels.reshape(-1), weight, ignore_index=-1)
        reduction = "sum" if bug == "sum over all pixels" else "mean"
        return F.cross_entropy(scores, labels, weight, ignore_index=-1, reduction=reduction)

    return Case(model, bands, labels, loss, torch.optim.Adam(model.parameters(), lr=3e-3))
