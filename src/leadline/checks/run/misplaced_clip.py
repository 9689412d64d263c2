"""T819: gradients are clipped where clipping has no effect, or the wrong one."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import constant, scalar_history
from leadline.checks._history import History
from leadline.checks._loop import MIN_WRONG_STEPS, STEP_WINDOW, since, value


@check(
    code="T819",
    name="misplaced-clip",
    since="0.1.0",
    needs=("late_clips", "scaled_clips"),
    sick=scalar_history(40, late_clips=lambda step: min(step, STEP_WINDOW)),
    healthy=scalar_history(40, late_clips=constant(0.0), scaled_clips=constant(0.0)),
    explains=("T813",),
)
def misplaced_clip(history: History) -> Iterator[Symptom]:
    r"""Gradients are clipped after the step, or while they still carry the loss scale.

    ## What it measures
    In how many of the last `STEP_WINDOW` = 32 steps `clip_grad_norm_` or `clip_grad_value_` was called with a finite
    limit when no backward pass had reached the parameters since their last step, or before a GradScaler had divided
    the gradients by its scale. Fires at `MIN_WRONG_STEPS` = 4.

    ## Why it hurts
    Clipping after the step changes gradients that nobody uses: the run has no protection against spikes. Clipping
    gradients that are 65,536 times too large always clips, so that every step has the same tiny length.

    ## When it is wrong
    A limit of infinity (which only measures the norm) does not count, nor does a limit that was multiplied by the loss
    scale: one above 1/64 of it.

    ## References
    PyTorch documentation, "Automatic mixed precision examples", working with unscaled gradients.
    """
    late, scaled = value(history, "late_clips"), value(history, "scaled_clips")
    if late >= MIN_WRONG_STEPS:
        yield Symptom(
            severity="warning",
            where="the gradients",
            since=since(history, "late_clips"),
            message=f"in {late:.0f} of the last {STEP_WINDOW} steps gradients were clipped only after the step had "
            "used them",
            action="Move `clip_grad_norm_` between `loss.backward()` and `optimizer.step()`.",
            forecast="large gradients reach the weights unclipped",
            evidence={"steps": late},
        )
    if scaled >= MIN_WRONG_STEPS:
        yield Symptom(
            severity="warning",
            where="the gradients",
            since=since(history, "scaled_clips"),
            message=f"in {scaled:.0f} of the last {STEP_WINDOW} steps gradients were clipped while they carried the "
            "loss scale",
            action="Call `scaler.unscale_(optimizer)` before `clip_grad_norm_`.",
            forecast="every step is clipped to a tiny length",
            evidence={"steps": scaled},
        )
