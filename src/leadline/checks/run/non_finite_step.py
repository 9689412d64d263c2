"""T814: a NaN or an infinity appears in training."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import constant, scalar_history
from leadline.checks._history import History
from leadline.checks._timeline import first_cause
from leadline.records.run import FirstCause

# Heuristic: steps judged in one look, because checks do not look at every step.
RECENT_STEPS = 8


@check(
    code="T814",
    name="non-finite-step",
    since="0.1.0",
    needs=("loss", "grad_norm", "non_finite"),
    sick=scalar_history(60, loss=lambda step: 2.0 if step < 50 else float("nan"), grad_norm=constant(1.0)),
    healthy=scalar_history(60, loss=constant(2.0), grad_norm=constant(1.0)),
    every=4,
    explains=("T801", "T802", "T803", "T804", "T805", "T806", "T807", "T808", "T810", "T811", "T812", "T813"),
)
def non_finite_step(history: History) -> Iterator[Symptom]:
    r"""The loss, a gradient or a weight is NaN or infinite.

    ## What it measures
    The first recent step at which the loss, a gradient, the update or the weights are not finite, and which of them
    was first: within a step the loss comes before gradients, gradients before the update, the update before the
    weights. Among gradients, the deepest block with a non-finite one is where the backward pass broke; all blocks
    before it only inherit it. A step that mixed precision skipped for this reason counts only if the loss itself is not
    finite.

    ## Why it hurts
    A NaN never goes away: after one step with it every weight is NaN. Its cause lies earlier: the first-cause timeline
    (`leadline.checks._timeline`) lists what the steps before did.

    ## When it is wrong
    Never, about the number. A loss that is infinite by design (log of an exact zero) has the same consequences.

    ## References
    Derived from the order of operations in a step.
    """
    if not any(_is_non_finite(history, name) for name in ("loss", "grad_norm", "update_norm", "non_finite")):
        return
    cause = first_cause(history)
    if cause is None:
        return
    yield Symptom(
        severity="error",
        where=cause.where,
        layers=cause.layers,
        since=cause.step,
        message=cause.sentence + _growth_before(cause),
        action=_action(cause),
        forecast=_forecast(history, cause),
        evidence={"step": float(cause.step), "steps_seen_before": float(len(cause.before))},
    )


def _growth_before(cause: FirstCause) -> str:
    """What grew before the step broke."""
    if not cause.suspects:
        return ""
    first = cause.suspects[0]
    return (
        f"; before it {first.what} grew to {first.factor:.3g} times its usual size from step {first.since} on"
    )


def _action(cause: FirstCause) -> str:
    if cause.op:
        return f"Guard `{cause.op}` with an epsilon or a clamp, and resume from a checkpoint before step {cause.step}."
    if cause.suspects:
        since = cause.suspects[0].since
        return f"Resume from a checkpoint before step {since} with a smaller learning rate."
    return f"Inspect the batch of step {cause.step}, and resume from a checkpoint before that step."


def _forecast(history: History, cause: FirstCause) -> str:
    skipped = history.skips_non_finite or history.has("loss_scale")  # a GradScaler skips such steps
    if skipped or cause.metric not in ("loss", "gradient"):
        return ""
    return "every weight is NaN after the next step"


def _is_non_finite(history: History, name: str) -> bool:
    """Whether a recent value is not finite, or counts something that is not."""
    recent = history.scalars(name, RECENT_STEPS).values
    return any(not math.isfinite(each) for each in recent) or (name == "non_finite" and any(recent))
