"""Mixed precision: which GradScaler is in use, what its scale is, and how many steps it skipped."""

from __future__ import annotations

import math
import sys
import weakref
from types import CodeType
from typing import Any

from torch.amp import GradScaler
from torch.optim import Optimizer

from leadline.checks.run.loss_scale_collapse import MIN_LOSS_SCALE

# Heuristic: call frames searched between a step hook and `GradScaler.step`; PyTorch's own wrappers take five.
MAX_FRAMES = 12
_SCALER_STEP: CodeType = GradScaler.step.__code__


class ScalerObserver:
    """Finds the GradScaler that steps the optimizer, and reads its scale.

    A scaler leaves no mark on an optimizer, so it is searched on the call stack of the step that it makes. No hook
    sees a skipped step, but a skip multiplies the scale by the scaler's backoff factor, which the next step reads.
    """

    def __init__(self) -> None:
        self._scaler: weakref.ref[GradScaler] | None = None
        self._last_scale: float | None = None

    @property
    def has_scaler(self) -> bool:
        return self._scaler is not None

    def find_scaler(self) -> None:
        """Search the call stack unless a scaler is known; call it from within a step."""
        if self._scaler is not None:
            return
        frame: Any = sys._getframe(1)
        for _ in range(MAX_FRAMES):
            frame = frame.f_back
            if frame is None:
                return
            if frame.f_code is _SCALER_STEP:
                scaler = frame.f_locals["self"]
                self._scaler = weakref.ref(scaler)
                self._last_scale = float(scaler._init_scale) if scaler.is_enabled() else None
                return

    def read(self, *, peek: bool = False) -> tuple[float | None, int]:
        """Return the scale, and the steps skipped since the last read; with `peek` this call is not a read."""
        scaler = self._scaler() if self._scaler is not None else None
        if scaler is None or not scaler.is_enabled():
            return None, 0
        scale, before = float(scaler.get_scale()), self._last_scale
        self._last_scale = before if peek else scale
        return scale, _skipped_steps(before, scale, scaler.get_backoff_factor())


def _skipped_steps(before: float | None, now: float, backoff: float) -> int:
    r"""Return $\log(\mathrm{now}/\mathrm{before}) / \log(\mathrm{backoff})$ if the scale fell, else 0.

    For a scale of zero it is the number of skips that lead to the smallest scale.
    """
    if before is None or not 0 <= now < before:
        return 0
    return round(math.log(max(now, MIN_LOSS_SCALE) / before) / math.log(backoff))


def pending_scale(optimizer: Optimizer) -> float:
    """Return the scale that a fused optimizer's gradients still carry; its kernel removes it."""
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else float(scale)


def has_overflow(optimizer: Optimizer) -> bool:
    """True if the scaler told a fused optimizer to skip this step."""
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf.item())
