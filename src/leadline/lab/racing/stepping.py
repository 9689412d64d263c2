"""Adam and SGD on the parameters of several networks at once, each network at its own rate.

A parameter is a stack over networks, so torch's optimisers, which have one rate a tensor, do not fit. The formulas are
theirs (bias-corrected Adam, epsilon outside of the root), and a test compares the two. Parameters may have a factor on
the rate and an epsilon of their own, as `leadline.nn.param_groups` gives them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Optimiser = Literal["adam", "sgd"]

OPTIMISERS = ("adam", "sgd")
BETAS = (0.9, 0.999)  # torch's defaults
EPS = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """On which a parameter steps, the same in every network: `factor` times the network's rate, and Adam's epsilon."""

    factor: float = 1.0
    eps: float = EPS


class Stepper:
    """The optimiser's state over a training. `rates`: one a network, the first axis of every parameter. `terms`: one
    a parameter; none: the same for all."""

    def __init__(
        self, kind: Optimiser, parameters: Sequence[Tensor], rates: Tensor, terms: Sequence[Terms] = ()
    ) -> None:
        self.kind, self.parameters, self.count = kind, list(parameters), 0
        mine = terms or [Terms()] * len(self.parameters)
        self.eps = [each.eps for each in mine]
        self.rates = [
            each.factor * rates.view(-1, *[1] * (parameter.ndim - 1))
            for each, parameter in zip(mine, parameters, strict=True)
        ]
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
        torch._foreach_add_(roots, self.eps)
        moves = torch._foreach_div(self.first, roots)
        torch._foreach_div_(moves, 1 - one**self.count)
        return list(moves)
