"""Graph networks of torch_geometric, which classify the nodes of one random graph."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.zoo.architecture import Architecture, labels, noise_target_loss
from leadline import Case

NODES, EDGES, FEATURES, WIDTH, LAYERS, CLASSES = 48, 192, 16, 32, 4, 5
DEGREES = torch.tensor([1, 4, 8, 6, 4, 2, 1])

STACKS: dict[str, dict[str, Any]] = {
    "GCN": {},
    "GraphSAGE": {},
    "GIN": {},
    "GAT": {"heads": 4},
    "GATv2": {"class": "GAT", "v2": True, "heads": 4},
    "EdgeCNN": {},
    "PNA": {"aggregators": ["mean", "max", "std"], "scalers": ["identity", "amplification"], "deg": DEGREES},
    "GCN, jumping knowledge": {"class": "GCN", "jk": "cat"},
    "GCN, batch norm": {"class": "GCN", "norm": "batch_norm"},
}


def architectures() -> Iterator[Architecture]:
    for name, options in STACKS.items():
        yield _architecture(name, partial(stack, {"class": name, **options}))
    yield _architecture("DeepGCN, 8 layers", deep)
    yield _architecture("TransformerConv", attention)
    yield _architecture("SchNet", molecules)


def _architecture(name: str, build: Any) -> Architecture:
    return Architecture(name=f"torch_geometric/{name}", origin="torch_geometric", build=build)


def graph() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(NODES, FEATURES), torch.randint(0, NODES, (2, EDGES))


def classification_case(model: nn.Module) -> Case:
    return Case(model, graph(), labels(CLASSES, NODES), nn.functional.cross_entropy)


def stack(options: dict[str, Any]) -> Case:
    kind = getattr(importlib.import_module("torch_geometric.nn"), options["class"])
    rest = {name: value for name, value in options.items() if name != "class"}
    return classification_case(kind(FEATURES, WIDTH, LAYERS, CLASSES, **rest))


class Deep(nn.Module):
    """DeeperGCN's residual layers around generalized convolutions."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        pyg = importlib.import_module("torch_geometric.nn")
        self.first, self.last = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.layers = nn.ModuleList(
            pyg.DeepGCNLayer(
                pyg.GENConv(WIDTH, WIDTH, aggr="softmax", learn_t=True),
                pyg.LayerNorm(WIDTH),
                nn.ReLU(),
                block="res+",
            )
            for _ in range(layers)
        )

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x, edges)
        return self.last(x)


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        conv = importlib.import_module("torch_geometric.nn").TransformerConv
        self.layers = nn.ModuleList(
            [conv(FEATURES, WIDTH // 4, heads=4), conv(WIDTH, WIDTH // 4, heads=4), conv(WIDTH, CLASSES)]
        )

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = layer(x, edges).relu()
        return self.layers[-1](x, edges)


def deep() -> Case:
    return classification_case(Deep(8))


def attention() -> Case:
    return classification_case(Attentive())


def molecules() -> Case:
    kind = importlib.import_module("torch_geometric.nn").SchNet
    model = kind(hidden_channels=WIDTH, num_filters=WIDTH, num_interactions=3, num_gaussians=16, cutoff=5.0)
    atoms = torch.randint(1, 9, (24,)), 2 * torch.randn(24, 3), torch.arange(4).repeat_interleave(6)
    return Case(model, atoms, torch.randn(4, 1), noise_target_loss)
