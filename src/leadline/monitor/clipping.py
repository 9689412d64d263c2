"""The share of the gradient that clipping removes, and interventions that skip or clip a step on request."""

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

# Derived: two float32 norms of the same gradient, summed in different orders, differ by less than this share.
MIN_CLIPPED_SHARE = 1e-4


class RawGradients:
    """While armed, measures the norm of each gradient when it is accumulated, before the user's loop clips it."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._parameters = list(parameters)
        self._norms: dict[int, Tensor | Norms] = {}
        self._hooked: list[Tensor] = []
        self._handles: list[RemovableHandle] = []
        self._error: Exception | None = None
        self._used: list[Tensor | Norms] = []
        self._scale = 1.0

    def arm(self) -> None:
        self._hooked = [each for each in self._parameters if each.requires_grad and each.is_leaf]
        register: Any = Tensor.register_post_accumulate_grad_hook  # torch does not annotate it
        self._handles = [register(each, self._measure) for each in self._hooked]

    def disarm(self) -> None:
        """Remove the hooks, and also the empty dict of hooks, which every backward pass would otherwise look up."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for each in self._hooked:
            if not each._post_accumulate_grad_hooks:
                each._post_accumulate_grad_hooks = None  # type: ignore[assignment]  # as before the first hook
        self._hooked = []

    def _measure(self, parameter: Tensor) -> None:
        if parameter.grad is None:  # an optimizer inside the backward pass has already consumed it
            return
        try:
            with torch.no_grad():
                self._norms[id(parameter)] = one_norm(parameter.grad)
        except Exception as error:  # an error of the watch must not end the user's backward pass
            self._error = error

    def take(self, scale: float) -> None:
        """Note which gradients the step will use; those that were measured carry this loss scale."""
        if self._error is not None:
            raise self._error
        with_gradient = [each for each in self._parameters if each.grad is not None]
        if all(id(each) in self._norms for each in with_gradient):
            self._used = [self._norms[id(each)] for each in with_gradient]
        self._scale = scale

    def norms(self) -> list[Norms]:
        """The norms of the used gradients that may still be on a device."""
        return [each for each in self._used if isinstance(each, Norms)]

    def clipped_share(self, norm: float) -> float | None:
        """Return the share missing from a gradient of this norm; None if some gradient was not measured."""
        if not self._used:
            return None
        norms, scale = map(read_one, self._used), self._scale
        raw_norm = total([each for each in norms if each is not None])
        if not math.isfinite(raw_norm):
            return None
        share = 1 - norm * scale / raw_norm if raw_norm > 0 else 0.0
        if math.isnan(share):
            return None
        return share if share > MIN_CLIPPED_SHARE else 0.0


def clipped_share(before: Sequence[Tensor | float], after: float | None) -> float | None:
    """Return the share of the gradient norm that clipping removed; None if one of the two norms is unknown."""
    norm = math.hypot(*map(float, before))
    return max(0.0, 1 - after / norm) if before and after is not None and norm > 0 else None


# Interventions, off by default: a step whose gradient is an outlier is skipped, or its gradient is clipped.
#
# A gradient is an outlier if its norm is not finite, or lies more than `MAX_SIGMAS` standard deviations above the mean
# of the last `NORM_WINDOW` norms that passed.

# Cited: the spike score of OLMo-core, which skips steps by it.
MAX_SIGMAS = 6.0
# Cited: the window of the same score in OLMo-core.
NORM_WINDOW = 128
# Derived: the standard deviation of fewer norms is off by more than an eighth.
MIN_NORMS = 32

InterventionKind = Literal["skip_step", "clip"]


class Intervention:
    """Skips or clips the steps of one or several optimizers, each judged by its own past norms."""

    def __init__(self, kind: InterventionKind) -> None:
        self.kind = kind
        self._norms: dict[int, deque[float]] = {}
        self._removed_grads: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def before(self, optimizer: Optimizer, norm: float) -> str:
        """Act if this norm is an outlier; return what was done, or "". Call `after` when the step is made."""
        norms = self._norms.setdefault(id(optimizer), deque(maxlen=NORM_WINDOW))
        limit = _norm_limit(norms)
        if norm <= limit:
            norms.append(norm)
            return ""
        if self.kind == "clip" and math.isfinite(norm):
            _scale_gradients(optimizer, limit / norm)
            norms.append(limit)
            return f"gradient clipped from norm {norm:.3g} to {limit:.3g}"
        self._removed_grads[id(optimizer)] = _remove_gradients(optimizer)
        return f"step skipped: gradient norm {norm:.3g} is above the limit {limit:.3g}"

    def after(self, optimizer: Optimizer) -> None:
        """Restore the gradients of a skipped step."""
        for parameter, grad in self._removed_grads.pop(id(optimizer), ()):
            parameter.grad = grad


def _norm_limit(norms: deque[float]) -> float:
    """Return the largest norm that passes; with too few past norms, every finite norm passes."""
    if len(norms) < MIN_NORMS:
        return float(torch.finfo(torch.float64).max)
    return statistics.fmean(norms) + MAX_SIGMAS * statistics.stdev(norms)


def _gradients(optimizer: Optimizer) -> list[tuple[Tensor, Tensor]]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [(each, each.grad) for each in parameters if each.grad is not None]


def _remove_gradients(optimizer: Optimizer) -> list[tuple[Tensor, Tensor]]:
    """Set all gradients to None, so that the optimizer changes neither weights nor its state; return them."""
    gradients = _gradients(optimizer)
    for parameter, _ in gradients:
        parameter.grad = None
    return gradients


@torch.no_grad()
def _scale_gradients(optimizer: Optimizer, factor: float) -> None:
    torch._foreach_mul_([grad for _, grad in _gradients(optimizer)], factor)
