"""T814: a number that is none appears in training."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._history import History
from leadline.checks._run_examples import constant, course
from leadline.checks._timeline import first_cause
from leadline.records.cause import FirstCause

RECENT = 8  # ours: steps judged in one look; an alarm need not be asked every step


@check(
    code="T814",
    name="non-finite-step",
    since="0.1",
    needs=("loss", "grad_norm", "non_finite"),
    sick=course(60, loss=lambda step: 2.0 if step < 50 else float("nan"), grad_norm=constant(1.0)),
    healthy=course(60, loss=constant(2.0), grad_norm=constant(1.0)),
    every=4,
    explains=("T801", "T802", "T803", "T804", "T805", "T806", "T807", "T808", "T810", "T811", "T812", "T813"),
)
def non_finite_step(history: History) -> Iterator[Symptom]:
    r"""The loss, a gradient or a weight is NaN or infinite.

    ## What it measures
    The first recent step at which the loss, a gradient, the update or the weights are not finite, and which of them
    was first: within a step the loss comes before gradients, these before the update, the update before the weights.
    Among gradients, the deepest block that has one is where the backward pass broke: all blocks before it only
    inherit it. A step that mixed precision skipped for this reason counts only if the loss itself is not finite.

    ## Why it hurts
    A NaN never goes away: one step with it, and every weight is NaN. The cause lies before: the first-cause timeline
    (`leadline.checks._timeline`) lists what the steps before did.

    ## When it is wrong
    Never, about the number. A loss that is infinite by design (log of an exact zero) is the same trouble.

    ## References
    Derived from the order of operations in a step.
    """
    if not any(_is_broken(history, name) for name in ("loss", "grad_norm", "update_norm", "non_finite")):
        return
    cause = first_cause(history)
    if cause is None:
        return
    yield Symptom(
        severity="error",
        where=cause.where,
        layers=cause.layers,
        since=cause.step,
        message=cause.sentence + _grown(cause),
        forecast=_forecast(history, cause),
        evidence={"step": float(cause.step), "steps_seen_before": float(len(cause.before))},
    )


def _grown(cause: FirstCause) -> str:
    """What went out of line before."""
    if not cause.suspects:
        return ""
    first = cause.suspects[0]
    return f"; before it {first.what} grew to {first.factor:.3g} times its usual size, from step {first.since} on"


def _forecast(history: History, cause: FirstCause) -> str:
    if history.guarded or history.has("loss_scale") or cause.metric not in ("loss", "gradient"):
        return ""  # a scaler leaves out such steps
    return "every weight is NaN after the next step"


def _is_broken(history: History, name: str) -> bool:
    """Whether a recent value is not finite, or counts something that is not."""
    recent = history.scalars(name, RECENT).values
    return any(not math.isfinite(each) for each in recent) or (name == "non_finite" and any(recent))
