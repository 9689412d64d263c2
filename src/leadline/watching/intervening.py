r"""Interventions, off unless asked for: a step whose gradient stands out is skipped, or its gradient is clipped.

A gradient stands out if its norm is not finite, or lies more than `SIGMAS` standard deviations above the mean of the
last `WINDOW` steps that were let through.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

SIGMAS = 6.0  # cited: the spike score of OLMo-core, which skips steps by it
WINDOW = 128  # cited: likewise
LEAST = 32  # norms before anything is done; ours: a standard deviation of fewer is off by more than an eighth

Kind = Literal["skip_step", "clip"]


class Intervention:
    """Acts on the gradients of one or several optimisers, each by its own past."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._past: dict[int, deque[float]] = {}
        self._taken: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def before(self, optimizer: Optimizer, norm: float) -> str:
        """Act if this norm stands out; what was done, in words, or "". Call `after` when the step has been made."""
        past = self._past.setdefault(id(optimizer), deque(maxlen=WINDOW))
        limit = _limit(past)
        if norm <= limit:
            past.append(norm)
            return ""
        if self.kind == "clip" and math.isfinite(norm):
            _scale(optimizer, limit / norm)
            past.append(limit)
            return f"gradient clipped from {norm:.3g} to {limit:.3g}"
        self._taken[id(optimizer)] = _take(optimizer)
        return f"step skipped: gradient norm {norm:.3g}, limit {limit:.3g}"

    def after(self, optimizer: Optimizer) -> None:
        """Give back the gradients of a step that was skipped."""
        for parameter, grad in self._taken.pop(id(optimizer), ()):
            parameter.grad = grad


def _limit(past: deque[float]) -> float:
    """Largest norm that is let through; no limit while too little is known, but for what is not a number."""
    if len(past) < LEAST:
        return float(torch.finfo(torch.float64).max)
    return statistics.fmean(past) + SIGMAS * statistics.stdev(past)


def _held(optimizer: Optimizer) -> list[tuple[Tensor, Tensor]]:
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [(each, each.grad) for each in held if each.grad is not None]


def _take(optimizer: Optimizer) -> list[tuple[Tensor, Tensor]]:
    """Optimisers pass over a parameter without gradient: nothing moves, decays or is averaged."""
    taken = _held(optimizer)
    for parameter, _ in taken:
        parameter.grad = None
    return taken


@torch.no_grad()
def _scale(optimizer: Optimizer, factor: float) -> None:
    torch._foreach_mul_([grad for _, grad in _held(optimizer)], factor)
