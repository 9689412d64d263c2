"""Rows of features: regression, tables with categories, recommendation, graphs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case

# House prices with a plain Sequential.


def squared_error(prediction: Tensor, y: Tensor) -> Tensor:
    return ((prediction - y) ** 2).mean()


@problem(
    "house-prices",
    "tabular regression",
    bug("column against a vector", "mixed-targets", "(48, 1)", "(48,)"),
    bug("column against a vector, by hand", "mixed-targets"),
    bug("prices not scaled", "targets-out-of-scale"),
    bug("error maximized", "negated-loss"),
    bug("features are all zero", "idle-input", "input"),
    bug("optimizer of another network", "forgotten-parameters or foreign-optimizer"),
    bug("summed over the batch", "summed-loss", note=True),
    bug("prediction rounded", "step-function", "round"),
)
def house_prices(bug: str) -> Case:
    model = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    features, prices = torch.randn(48, 9), torch.randn(48, 1)
    loss = nn.MSELoss(reduction="sum" if bug == "summed over the batch" else "mean")
    if bug.startswith("column against a vector"):
        prices = prices.squeeze(1)
    if bug == "column against a vector, by hand":
        loss = squared_error
    if bug == "prices not scaled":
        prices = 200_000 + 50_000 * prices
    if bug == "error maximized":
        loss = lambda prediction, y: -F.mse_loss(prediction, y)  # noqa: E731
    if bug == "prediction rounded":
        loss = lambda prediction, y: F.mse_loss(prediction.round(), y)  # noqa: E731
    if bug == "features are all zero":
        features = torch.zeros_like(features)
    other = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 1))
    trained = other if bug == "optimizer of another network" else model
    return Case(model, features, prices, loss, torch.optim.Adam(trained.parameters(), lr=1e-3))


# Energy use from sensor rows, written by hand with einsum.


class GatedRegressor(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(12, 24) / 12**0.5)
        self.w2 = nn.Parameter(torch.randn(24, 1) / 24**0.5)
        self.gate = nn.Parameter(torch.zeros(24))
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        if self.bug == "standardized by the batch's own sum":
            x = x / x.abs().sum(0, keepdim=True)
        h = torch.einsum("bi,ij->bj", x, self.w1)
        h = torch.tanh(h) * torch.sigmoid(self.gate)
        if self.bug == "hidden units through numpy":
            h = torch.from_numpy(h.detach().numpy())
        if self.bug == "indices mixed in the einsum":
            return torch.einsum("bj,jk->k", h, self.w2).expand(len(x), 1)
        return torch.einsum("bj,jk->bk", h, self.w2)


@problem(
    "energy",
    "tabular regression",
    bug("standardized by the batch's own sum", "mixed-samples", "sum"),
    bug("indices mixed in the einsum", "mixed-samples", "einsum"),
    bug("hidden units through numpy", "blocked-path", "w1"),
    bug("targets unsqueezed twice", "mixed-targets", "(30, 1)"),
    bug("l1 loss negated", "negated-loss"),
    bug("gate missing in the optimizer", "forgotten-parameters", "gate"),
)
def energy(bug: str) -> Case:
    model = GatedRegressor(bug)
    x, y = torch.randn(30, 12), torch.randn(30, 1)
    if bug == "targets unsqueezed twice":
        y = y.unsqueeze(1)
    sign = -1 if bug == "l1 loss negated" else 1
    trained = [model.w1, model.w2] + ([] if bug == "gate missing in the optimizer" else [model.gate])
    return Case(model, x, y, lambda p, y: sign * F.l1_loss(p, y), torch.optim.SGD(trained, lr=0.1))


# Categories as embeddings, a binary answer.


class TabularModel(nn.Module):
    def __init__(self, bug: str, sizes: tuple[int, ...] = (5, 7, 3)) -> None:
        super().__init__()
        embeds = [nn.Embedding(size, 4) for size in sizes]
        self.embeds = embeds if bug == "embeddings in a list" else nn.ModuleList(embeds)
        self.bn = nn.BatchNorm1d(6)
        self.lin1 = nn.Linear(4 * len(sizes) + 6, 24)
        self.lin2 = nn.Linear(24, 1)
        self.bug = bug

    def forward(self, x_cat: Tensor, x_cont: Tensor) -> Tensor:
        cats = [e(x_cat[:, i]) for i, e in enumerate(self.embeds)]
        conts = self.bn(x_cont)
        if self.bug == "numbers forgotten":
            conts = torch.zeros_like(conts)
        x = torch.cat([*cats, conts], 1)
        x = self.lin2(F.relu(self.lin1(x)))
        return torch.sigmoid(x) if self.bug == "sigmoid and BCE with logits" else x


def focal(logits: Tensor, y: Tensor) -> Tensor:
    p = torch.sigmoid(logits)
    return -(y * (1 - p) ** 2 * F.logsigmoid(logits) + (1 - y) * p**2 * F.logsigmoid(-logits)).mean()


@problem(
    "tabular-embeddings",
    "tabular classification",
    bug("embeddings in a list", "unregistered-parameters", "(5, 4)"),
    bug("numbers forgotten", "idle-input", "x_cont", note=True),
    bug("sigmoid and BCE with logits", "squashed-logits", "sigmoid"),
    bug("focal loss against a vector", "mixed-targets"),
    bug("all answers are no", "single-answer", "100 %", note=True),
    bug("loss negated", "negated-loss"),
)
def tabular_embeddings(bug: str) -> Case:
    model = TabularModel(bug)
    rows = 40
    x_cat = torch.stack([torch.randint(0, size, (rows,)) for size in (5, 7, 3)], dim=1)
    y = (torch.rand(rows, 1) < 0.4).float()
    if bug == "all answers are no":
        y = torch.zeros_like(y)
    loss = F.binary_cross_entropy_with_logits
    if bug == "focal loss against a vector":
        y, loss = y.squeeze(1), focal
    if bug == "loss negated":
        loss = lambda p, y: -F.binary_cross_entropy_with_logits(p, y)  # noqa: E731
    batch = {"x_cat": x_cat, "x_cont": torch.randn(rows, 6)}
    return Case(model, batch, y, loss, torch.optim.Adam(model.parameters(), lr=1e-2))


# Ratings of users for items.


class MatrixFactorization(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.user_factors = nn.Embedding(30, 8)
        self.item_factors = nn.Embedding(50, 8)
        self.item_bias = nn.Embedding(50, 1)
        self.bug = bug

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        u, i = self.user_factors(user), self.item_factors(item)
        if self.bug == "every user with every item":
            return (u @ i.t()).mean(1)
        if self.bug == "bias keeps its column":
            return ((u * i).sum(1) + self.item_bias(item)).mean(0)
        if self.bug == "user passed twice":
            i = self.user_factors(user)
        return (u * i).sum(1) + self.item_bias(item).squeeze(1)


@problem(
    "recommender",
    "recommendation",
    bug("every user with every item", "mixed-samples"),
    bug("bias keeps its column", "mixed-samples", "add"),
    bug("user passed twice", "discarded-results", "item_factors", note=True),
    bug("ratings as a column", "mixed-targets", "(36,)", "(36, 1)"),
    bug("item factors not in the optimizer", "forgotten-parameters", "item_factors.weight"),
)
def recommender(bug: str) -> Case:
    model = MatrixFactorization(bug)
    user, item = torch.randint(0, 30, (36,)), torch.randint(0, 50, (36,))
    ratings = torch.randn(36)
    if bug == "ratings as a column":
        ratings = ratings.unsqueeze(1)
    trained = [
        each
        for name, each in model.named_parameters()
        if bug != "item factors not in the optimizer" or not name.startswith("item_factors")
    ]
    return Case(model, (user, item), ratings, F.mse_loss, torch.optim.SGD(trained, lr=0.1))


# Nodes of one graph, with a dense adjacency.


class GCN(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        layers = [nn.Linear(10, 16), nn.Linear(16, 16)]
        self.layers = layers if bug == "layers in a list" else nn.ModuleList(layers)
        self.out = nn.Linear(16, 4)
        self.bug = bug

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x if self.bug == "adjacency not used" else adj @ x))
        x = self.out(x)
        if self.bug == "raw scores":
            return x
        return F.log_softmax(x, dim=0 if self.bug == "log_softmax over the nodes" else 1)


@problem(
    "gcn",
    "graph",
    bug("layers in a list", "unregistered-parameters", "4"),
    bug("adjacency not used", "idle-input", "adj", note=True),
    bug("raw scores", "unnormalized-scores", "nll_loss", "logits"),
    bug("log_softmax over the nodes", "unnormalized-scores", "nll_loss"),
    bug("all nodes in one community", "single-answer", "100 %"),
)
def gcn(bug: str) -> Case:
    model = GCN(bug)
    nodes = 34
    adj = ((torch.rand(nodes, nodes) < 0.15) | torch.eye(nodes, dtype=torch.bool)).float()
    adj = adj / adj.sum(1, keepdim=True)
    labels = torch.randint(0, 4, (nodes,))
    if bug == "all nodes in one community":
        labels = torch.full_like(labels, 2)
    batch = {"x": torch.randn(nodes, 10), "adj": adj}
    return Case(model, batch, labels, F.nll_loss, torch.optim.Adam(model.parameters(), lr=1e-2))


# A batch of small graphs, one answer per graph.


class GIN(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(a, 16), nn.ReLU(), nn.Linear(16, 16)) for a in (5, 16, 16)
        )
        self.eps = nn.ParameterList(nn.Parameter(torch.tensor(0.1)) for _ in range(3))
        self.readout = nn.Linear(16, 3)
        self.bug = bug

    def forward(self, h: Tensor, adj: Tensor) -> Tensor:
        for mlp, eps in zip(self.mlps, self.eps, strict=True):
            if self.bug == "neighbors of all graphs":
                neighbors = torch.einsum("bij,cjf->bif", adj, h)
            else:
                neighbors = torch.einsum("bij,bjf->bif", adj, h)
            h = mlp((1 + eps) * h + neighbors)
            if self.bug == "node features detached":
                h = h.detach()
        pooled = h.mean(1)
        if self.bug == "readout centered over the batch":
            pooled = pooled - pooled.mean(0)
        return self.readout(pooled)


@problem(
    "gin",
    "graph",
    bug("neighbors of all graphs", "mixed-samples", "einsum"),
    bug("node features detached", "blocked-path", "detach"),
    bug("readout centered over the batch", "mixed-samples", "mean"),
    bug("readout not in the optimizer", "forgotten-parameters", "readout.weight"),
)
def gin(bug: str) -> Case:
    model = GIN(bug)
    adj = torch.rand(6, 9, 9).lt(0.3).float()
    trained = [
        each
        for name, each in model.named_parameters()
        if bug != "readout not in the optimizer" or not name.startswith("readout")
    ]
    batch = {"h": torch.randn(6, 9, 5), "adj": adj}
    labels = torch.tensor([0, 1, 2, 1, 0, 2])
    return Case(model, batch, labels, nn.CrossEntropyLoss(), torch.optim.Adam(trained, lr=5e-3))
