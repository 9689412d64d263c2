"""Adam and SGD on the parameters of several networks at once, each network at its own rate.

A parameter is a stack over networks, so torch's optimisers, which have one rate a tensor, do not fit. The formulas are
theirs (bias-corrected Adam, epsilon outside of the root), and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Optimiser = Literal["adam", "sgd"]

OPTIMISERS = ("adam", "sgd")
BETAS = (0.9, 0.999)  # torch's defaults
EPS = 1e-8


class Stepper:
    """The optimiser's state over a training. `rates`: one a network, the first axis of every parameter."""

    def __init__(self, kind: Optimiser, parameters: Sequence[Tensor], rates: Tensor) -> None:
        self.kind, self.parameters, self.count = kind, list(parameters), 0
        self.rates = [rates.view(-1, *[1] * (each.ndim - 1)) for each in parameters]
        if kind == "adam":
            self.first = [torch.zeros_like(each) for each in parameters]
            self.second = [torch.zeros_like(each) for each in parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        self.count += 1
        moves = list(gradients) if self.kind == "sgd" else self._adam(list(gradients))
        torch._foreach_mul_(moves, self.rates)
        torch._foreach_sub_(self.parameters, moves)

    def _adam(self, gradients: list[Tensor]) -> list[Tensor]:
        one, two = BETAS
        torch._foreach_lerp_(self.first, gradients, 1 - one)
        torch._foreach_mul_(self.second, two)
        torch._foreach_addcmul_(self.second, gradients, gradients, 1 - two)
        roots = torch._foreach_sqrt(self.second)
        torch._foreach_div_(roots, (1 - two**self.count) ** 0.5)
        torch._foreach_add_(roots, EPS)
        moves = torch._foreach_div(self.first, roots)
        torch._foreach_div_(moves, 1 - one**self.count)
        return list(moves)
