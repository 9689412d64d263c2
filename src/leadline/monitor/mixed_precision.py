"""Mixed precision: which GradScaler is at work, what its scale is, and how many steps it skipped."""

from __future__ import annotations

import math
import sys
import weakref
from types import CodeType
from typing import Any

from torch.amp import GradScaler
from torch.optim import Optimizer

from leadline.checks.run.loss_scale_collapse import MIN_LOSS_SCALE

FRAMES = 12  # between a step hook and `GradScaler.step`; ours: PyTorch's own wrappers take five
_STEP: CodeType = GradScaler.step.__code__


class Scaling:
    """Follows the scaler that steps the optimiser.

    A scaler leaves no mark on an optimiser, so it is found where it must be: on the call stack of the step that it
    makes. A skipped step is one that no hook sees; but it multiplies the scale by the scaler's backoff factor, which
    is read when the next step is made.
    """

    def __init__(self) -> None:
        self._scaler: weakref.ref[GradScaler] | None = None
        self._known: float | None = None

    @property
    def found(self) -> bool:
        return self._scaler is not None

    def look(self) -> None:
        """Search the call stack, if no scaler is known; call it from within a step."""
        if self._scaler is not None:
            return
        frame: Any = sys._getframe(1)
        for _ in range(FRAMES):
            frame = frame.f_back
            if frame is None:
                return
            if frame.f_code is _STEP:
                scaler = frame.f_locals["self"]
                self._scaler = weakref.ref(scaler)
                self._known = float(scaler._init_scale) if scaler.is_enabled() else None
                return

    def read(self, *, peek: bool = False) -> tuple[float | None, int]:
        """The scale now, and how many steps were skipped since the last look, unless this one is only a `peek`."""
        scaler = self._scaler() if self._scaler is not None else None
        if scaler is None or not scaler.is_enabled():
            return None, 0
        scale, before = float(scaler.get_scale()), self._known
        self._known = before if peek else scale
        return scale, _skipped(before, scale, scaler.get_backoff_factor())


def _skipped(before: float | None, now: float, backoff: float) -> int:
    r"""$\log(\mathrm{now}/\mathrm{before}) / \log(\mathrm{backoff})$, where the scale fell; of a scale of zero, how
    many it takes to get there."""
    if before is None or not 0 <= now < before:
        return 0
    return round(math.log(max(now, MIN_LOSS_SCALE) / before) / math.log(backoff))


def pending_scale(optimizer: Optimizer) -> float:
    """What the gradients of a fused optimiser are still multiplied by: its kernel unscales them itself."""
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else float(scale)


def overflowed(optimizer: Optimizer) -> bool:
    """A fused optimiser was told to skip this step itself."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found.item())
