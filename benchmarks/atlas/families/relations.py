"""Graphs, sets, pairs and matrices: data whose samples are relations."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.atlas.families.blocks import Residual, act, norm, wide
from benchmarks.atlas.problem import Batch, Knobs, Recipe, Setup, family


def random_graphs(generator: torch.Generator, size: int, nodes: int = 12) -> Tensor:
    """Symmetric adjacency matrices with self-loops, normalized by degree."""
    edges = (torch.rand(size, nodes, nodes, generator=generator) < 0.15).float().triu(1)
    adjacency = edges + edges.transpose(1, 2) + torch.eye(nodes)
    degree = adjacency.sum(-1).rsqrt()
    return degree[:, :, None] * adjacency * degree[:, None, :]


class GraphLayer(nn.Module):
    def __init__(self, width: int, knobs: Knobs) -> None:
        super().__init__()
        self.linear, self.norm, self.act = (
            nn.Linear(width, width),
            norm(knobs, nn.LayerNorm(width)),
            act(knobs),
        )
        self.skips = knobs.skips

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        new = self.act(self.norm(adjacency @ self.linear(x)))
        return x + new if self.skips else new


class GraphNetwork(nn.Module):
    def __init__(self, knobs: Knobs, inputs: int, outputs: int, *, pooled: bool) -> None:
        super().__init__()
        width = wide(knobs, 24)
        self.into, self.pooled = nn.Linear(inputs, width), pooled
        self.layers = nn.ModuleList(GraphLayer(width, knobs) for _ in range(3 * knobs.depth))
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        x = self.into(x)
        for layer in self.layers:
            x = layer(x, adjacency)
        return self.head(x.mean(1) if self.pooled else x)


@family("graphs", "depth", "skips", "norms", "activation", "width")
def graph_convolution(knobs: Knobs) -> Setup:
    """The class of each node is the most frequent kind among its neighbors."""

    def draw(generator: torch.Generator) -> Batch:
        adjacency = random_graphs(generator, 16)
        kind = torch.randint(0, 3, adjacency.shape[:2], generator=generator)
        x = F.one_hot(kind, 3).float()
        return Batch((x, adjacency), (adjacency @ x).argmax(-1))

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), targets.flatten())

    return Setup(GraphNetwork(knobs, 3, 3, pooled=False), draw, loss, "classes", Recipe("adam", 5e-3), 250)


@family("graphs", "depth", "skips", "norms", "activation", "width")
def molecule_regression(knobs: Knobs) -> Setup:
    """A number per graph: how strongly neighbors are alike."""

    def draw(generator: torch.Generator) -> Batch:
        adjacency = random_graphs(generator, 32)
        x = torch.randn(*adjacency.shape[:2], 4, generator=generator)
        return Batch((x, adjacency), 3 * (x * (adjacency @ x)).mean((1, 2)).unsqueeze(1))

    return Setup(
        GraphNetwork(knobs, 4, 1, pooled=True), draw, F.mse_loss, "numbers", Recipe("adam", 5e-3), 400
    )


class DeepSets(nn.Module):
    def __init__(self, knobs: Knobs) -> None:
        super().__init__()
        width = wide(knobs, 32)
        self.each = nn.Sequential(nn.Linear(4, width), act(knobs), nn.Linear(width, width))
        self.all = nn.Sequential(nn.Linear(width, width), act(knobs), nn.Linear(width, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.all(self.each(x).sum(1)).squeeze(-1)


@family("sets", "activation", "width")
def deep_sets(knobs: Knobs) -> Setup:
    """A number per set: its mean squared length."""

    def draw(generator: torch.Generator) -> Batch:
        x = torch.randn(32, 9, 4, generator=generator)
        return Batch((x,), x.square().sum((1, 2)) / 36)

    return Setup(DeepSets(knobs), draw, F.mse_loss, "numbers", Recipe("adam", 1e-3), 400)


class Factors(nn.Module):
    def __init__(self, knobs: Knobs) -> None:
        super().__init__()
        width = wide(knobs, 8)
        self.users, self.items = nn.Embedding(50, width), nn.Embedding(70, width)
        self.user_bias, self.item_bias = nn.Embedding(50, 1), nn.Embedding(70, 1)
        nn.init.normal_(self.users.weight, std=0.3)
        nn.init.normal_(self.items.weight, std=0.3)

    def forward(self, ids: Tensor) -> Tensor:
        user, item = ids.unbind(1)
        bias = self.user_bias(user) + self.item_bias(item)
        return (self.users(user) * self.items(item)).sum(-1) + bias.squeeze(-1)


@family("recommendation", "width")
def matrix_factorization(knobs: Knobs) -> Setup:
    """Ratings of 70 items by 50 users."""
    source = torch.Generator().manual_seed(2)
    users, items = torch.randn(50, 3, generator=source), torch.randn(70, 3, generator=source)

    def draw(generator: torch.Generator) -> Batch:
        ids = torch.stack(
            [
                torch.randint(0, 50, (128,), generator=generator),
                torch.randint(0, 70, (128,), generator=generator),
            ],
            1,
        )
        return Batch((ids,), (users[ids[:, 0]] * items[ids[:, 1]]).sum(-1))

    return Setup(Factors(knobs), draw, F.mse_loss, "numbers", Recipe("adam", 2e-2), 500)


@family("contrastive", "depth", "skips", "norms", "activation", "width")
def contrastive(knobs: Knobs) -> Setup:
    """Two noisy views of a sample find each other among the batch."""
    width = wide(knobs, 32)
    blocks = [
        Residual(
            nn.Sequential(
                norm(knobs, nn.LayerNorm(width)), nn.Linear(width, width), act(knobs), nn.Linear(width, width)
            ),
            knobs,
        )
        for _ in range(2 * knobs.depth)
    ]
    encoder = nn.Sequential(nn.Linear(16, width), *blocks, nn.Linear(width, 12))

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, first: Tensor, second: Tensor) -> Tensor:
            one, two = F.normalize(self.encoder(first), dim=-1), F.normalize(self.encoder(second), dim=-1)
            return one @ two.T / 0.1

    def draw(generator: torch.Generator) -> Batch:
        hidden = torch.randn(32, 3, generator=generator)
        basis = torch.randn(3, 16, generator=torch.Generator().manual_seed(4))
        views = [hidden @ basis * 0.4 + 0.6 * torch.randn(32, 16, generator=generator) for _ in range(2)]
        return Batch((views[0], views[1]), torch.arange(32))

    return Setup(Pair(), draw, F.cross_entropy, "classes", Recipe("adam", 3e-3), 300)


@family("contrastive", "activation", "width")
def triplet(knobs: Knobs) -> Setup:
    """An anchor is nearer to a sample of its class than to another one."""
    width = wide(knobs, 32)

    class Triple(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(12, width), act(knobs), nn.Linear(width, 8))

        def forward(self, anchor: Tensor, near: Tensor, far: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return self.net(anchor), self.net(near), self.net(far)

    centers = torch.randn(5, 12, generator=torch.Generator().manual_seed(6))

    def draw(generator: torch.Generator) -> Batch:
        kind = torch.randint(0, 5, (48,), generator=generator)
        other = (kind + torch.randint(1, 5, (48,), generator=generator)) % 5
        points = [
            0.6 * centers[each] + torch.randn(48, 12, generator=generator) for each in (kind, kind, other)
        ]
        return Batch((points[0], points[1], points[2]))

    def loss(output: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return F.triplet_margin_loss(*output)

    return Setup(Triple(), draw, loss, "own", Recipe("adam", 3e-3), 300, evaluate=loss)
