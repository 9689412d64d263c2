"""Problems of a step that are reported immediately: non-finite losses, skipped steps, missing steps."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from leadline.checks._check import Symptom
from leadline.checks._timeline import first_cause, render_timeline
from leadline.monitor.journal import Journal
from leadline.monitor.mixed_precision import ScalerObserver
from leadline.monitor.non_finite import find_origin
from leadline.records.run import Alert
from leadline.tracer.inputs import unwrap
from leadline.tracer.names import index_model

# Heuristic: losses before the first step; more micro-batches than anyone accumulates.
MAX_LOSSES_BEFORE_FIRST_STEP = 1024
# Heuristic: losses since the last step; half of the window that run checks look at.
MIN_LOSSES_OF_STALL = 64
# Heuristic: the same when the watch is closed, so that short runs are reported too.
MIN_LOSSES_OF_STALL_AT_END = 8
# Heuristic: multiple of the largest number of losses in one step; a longer accumulation is not a stall.
STALL_FACTOR = 4


class StallDetector:
    """Counts the losses since the last optimizer step, to notice when no step follows them.

    Losses without a graph do not count because no step could follow them.
    """

    def __init__(self) -> None:
        self.limit = MAX_LOSSES_BEFORE_FIRST_STEP
        """Losses without a step that make a stall."""
        self.losses = 0
        """Losses with a graph since the last step."""
        self._most_losses = 0

    def add_loss(self, loss: Tensor | float) -> bool:
        """Count a loss; return True if training has stalled."""
        if isinstance(loss, Tensor) and loss.requires_grad:
            self.losses += 1
        return self.losses >= self.limit

    def add_step(self) -> None:
        if self.losses > self._most_losses or self.limit == MAX_LOSSES_BEFORE_FIRST_STEP:
            self._most_losses = max(self.losses, self._most_losses)
            self.limit = max(MIN_LOSSES_OF_STALL, STALL_FACTOR * self._most_losses)
        self.losses = 0

    @property
    def is_stalled_at_end(self) -> bool:
        """True if too many losses wait for a step when the run ends."""
        return self.losses >= max(MIN_LOSSES_OF_STALL_AT_END, STALL_FACTOR * self._most_losses)

    @property
    def has_stepped(self) -> bool:
        return self.limit != MAX_LOSSES_BEFORE_FIRST_STEP


def no_step_symptom(step: int, losses: int, *, has_stepped: bool) -> Symptom:
    """Return T811 for losses that no optimizer step follows."""
    since = f" since step {step - 1}" if has_stepped else ""
    return Symptom(
        severity="error" if has_stepped else "warning",
        where="the optimizer",
        since=step,
        message=f"the loop computed {losses} losses{since}, but the watched optimizer has not stepped",
        action="Call `optimizer.step()`, watch the optimizer that steps, or find why a GradScaler skips every step.",
        forecast="" if has_stepped else "without steps nothing of this run is measured",
        evidence={"losses": float(losses)},
    )


def all_steps_skipped_symptom(step: int, losses: int, scale: float, skipped: int) -> Symptom:
    """Return T809 for a known scaler whose scale has fallen."""
    return Symptom(
        severity="error",
        where="the loss scale",
        since=step,
        message=f"no step in {losses} losses: the scaler skipped {skipped} steps in a row because a gradient was not "
        f"finite, and its scale fell to {scale:.3g}",
        action="Find the op whose gradient is not finite, or train in bfloat16.",
        forecast="a lower scale does not fix it",
        evidence={"loss_scale": scale, "halvings": float(skipped)},
    )


class StepProblems:
    """Watches the losses, the loss scale of mixed precision, and whether steps are made at all."""

    def __init__(self, model: nn.Module, journal: Journal) -> None:
        self.model, self.journal = model, journal
        self.scaler = ScalerObserver()
        self.stall = StallDetector()
        self.is_non_finite = False
        """True if the loss or gradient of the last step was not finite."""

    def locate_non_finite(self, step: int, loss: Tensor | float) -> None:
        """Record which op made the loss non-finite; its graph shows it until the backward pass frees it."""
        if self.is_non_finite or not isinstance(loss, Tensor):
            return
        named = index_model(unwrap(self.model)).parameters
        origin = find_origin(loss, {key: each.names[0] for key, each in named.items()})
        if origin is not None:
            self.journal.history.non_finite_origins.setdefault(step, origin)

    def report_end(self, step: int) -> list[Alert]:
        """Report what remains when no further step will follow."""
        alerts = self.report_stall(step) if self.stall.is_stalled_at_end else []
        self.report_scale(step)
        return alerts

    def report_stall(self, step: int) -> list[Alert]:
        """Report that many losses were computed and no step was made."""
        scale, skipped = self.scaler.read(peek=True)
        losses = self.stall.losses
        if scale is not None and skipped:
            return self.journal.add_symptom("T809", all_steps_skipped_symptom(step, losses, scale, skipped))
        return self.journal.add_symptom(
            "T811", no_step_symptom(step, losses, has_stepped=self.stall.has_stepped)
        )

    def report_scale(self, step: int) -> float | None:
        """Return the loss scale, and record the steps that the scaler skipped."""
        scale, skipped = self.scaler.read()
        if skipped:
            steps = f"{skipped} step{'s' if skipped > 1 else ''}"
            message = f"the scaler skipped {steps} because gradients overflowed at their loss scale"
            self.journal.add_event(step, "skipped step", message, {"steps": skipped, "loss_scale": scale})
        return scale

    def report_non_finite(self, step: int, scalars: dict[str, float]) -> bool:
        """Record that loss or gradients are not finite; True when that begins, so that the next pass is traced."""
        non_finite = [name for name in ("loss", "grad_norm") if not math.isfinite(scalars.get(name, 0.0))]
        begins = bool(non_finite) and not self.is_non_finite
        if begins:
            data: dict[str, Any] = {"parameters": int(scalars.get("non_finite", 0))}
            cause = first_cause(self.journal.history)
            if cause is not None:
                data["timeline"] = render_timeline(cause)
            verb = "is" if len(non_finite) == 1 else "are"
            self.journal.add_event(step, "non-finite", f"{' and '.join(non_finite)} {verb} not finite", data)
        self.is_non_finite = bool(non_finite)
        return begins
