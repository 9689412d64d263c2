"""The clipping audit, and interventions that skip or clip a step on request."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from leadline.monitor.norms import Norms, one_norm, read_one, total

ROUNDING = 1e-4  # share removed below which nothing was; derived: norms in float32, taken in another order


class RawGradients:
    """The norm of each gradient when it was last accumulated, while armed."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._parameters = list(parameters)
        self._norms: dict[int, Tensor | Norms] = {}
        self._hooked: list[Tensor] = []
        self._handles: list[RemovableHandle] = []
        self._error: Exception | None = None

    def arm(self) -> None:
        self._hooked = [each for each in self._parameters if each.requires_grad and each.is_leaf]
        hook: Any = Tensor.register_post_accumulate_grad_hook  # has no types
        self._handles = [hook(each, self._made) for each in self._hooked]

    def disarm(self) -> None:
        """Take the hooks off, and the empty list of hooks, for which every backward pass would go on to ask Python."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for each in self._hooked:
            if not each._post_accumulate_grad_hooks:
                each._post_accumulate_grad_hooks = None  # type: ignore[assignment]  # as it is before the first hook
        self._hooked = []

    def _made(self, parameter: Tensor) -> None:
        if parameter.grad is None:  # an optimiser inside the backward pass has used it up already
            return
        try:
            with torch.no_grad():
                self._norms[id(parameter)] = one_norm(parameter.grad)
        except Exception as error:  # ours: it must not end the user's backward pass
            self._error = error

    def removed(self, norm: float, scale: float) -> float | None:
        """The share that is missing from a gradient of this norm; None if not all of it was seen as it was made."""
        if self._error is not None:
            raise self._error
        felt = [each for each in self._parameters if each.grad is not None]
        if not felt or any(id(each) not in self._norms for each in felt):
            return None
        norms = [read_one(self._norms[id(each)]) for each in felt]
        made = total([each for each in norms if each is not None])
        if not math.isfinite(made):
            return None
        share = 1 - norm * scale / made if made > 0 else 0.0
        return share if share > ROUNDING else 0.0 if share == share else None


def removed(before: Sequence[Tensor | float], after: float | None) -> float | None:
    """The share of the gradient's norm that clipping took; None if one of the two norms is not known."""
    whole = math.hypot(*map(float, before))
    return max(0.0, 1 - after / whole) if before and after is not None and whole > 0 else None


# Interventions, off unless asked for: a step whose gradient stands out is skipped, or its gradient is clipped.
#
# A gradient stands out if its norm is not finite, or lies more than `SIGMAS` standard deviations above the mean of the
# last `WINDOW` steps that were let through.

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
