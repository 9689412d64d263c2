"""A second network that copies the first one and does not learn is not a stack of cloned layers."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

import leadline


def encoder(width: int = 32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


class SelfDistilled(nn.Module):
    """BYOL in small: a predictor on the online network is compared with a copy that gets no gradient."""

    def __init__(self, *, frozen: bool) -> None:
        super().__init__()
        self.online, self.predictor = encoder(), encoder()
        self.target = copy.deepcopy(self.online).requires_grad_(not frozen)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = self.target(x + 0.1)
        return (self.predictor(self.online(x)) - wanted).square().mean()


class Copies(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(32, 32)
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).relu()
        return x.square().mean()


def codes(model: nn.Module) -> set[str]:
    torch.manual_seed(0)
    return {each.code for each in leadline.check(model, torch.randn(64, 32)).findings}


def test_a_target_network_is_no_clone_whether_it_is_frozen_or_only_runs_without_gradients() -> None:
    assert "I303" not in codes(SelfDistilled(frozen=True))
    assert "I303" not in codes(SelfDistilled(frozen=False))


def test_copies_that_learn_are_clones() -> None:
    assert "I303" in codes(Copies())
