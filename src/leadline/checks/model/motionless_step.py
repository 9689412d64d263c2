"""U508: the step is exactly zero."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_update
from leadline.records import Profile, Update


@check(
    code="U508",
    name="motionless-step",
    since="0.1.0",
    sick=stack_with_update(
        lr=0.0, update_norm=0.0, predicted_loss_change=0.0, measured_loss_change=0.0, safe_lr=None
    ),
    healthy=stack_with_update(),
)
def motionless_step(profile: Profile) -> Iterator[Symptom]:
    r"""Nothing is learned from this batch: the rate is zero, or the gradient is.

    ## What it measures
    One real step. An error if the gradient of every parameter that the optimiser holds is exactly 0, a note if all
    rates are exactly 0. (A step that is not zero but lost in rounding is U506.)

    ## Why it hurts
    Nothing moves, or only weight decay does. A gradient of exactly zero usually means that the loss does not depend on
    the parameters in any way autograd can see: a factor of zero, a saturated or clamped output, dead units throughout,
    an argmax or a rounding on the way.

    ## When it is wrong
    Many warm-ups begin at a rate of exactly zero, hence only a note: ask again a few steps later. A hinge loss that a
    trained model satisfies is zero, and so is its gradient: in the middle of training, a loss of zero is not reported.

    ## References
    Derived.
    """
    update = profile.update
    why = None if update is None else _why(update)
    if update is None or why is None:
        return
    yield Symptom(
        severity="info" if update.lr == 0 else "error",
        where="the optimiser",
        message=f"one step of {update.optimizer} teaches the model nothing: {why}",
        evidence={"update_norm": update.update_norm, "grad_square": update.grad_square, "loss": update.loss},
    )


def _why(update: Update) -> str | None:
    if update.lr == 0:
        return "its rate is 0; if that is the start of a warm-up, ask again a few steps later"
    if update.grad_square == 0 and not (update.steps and update.loss == 0):
        return "the gradient is exactly zero, so that the loss depends on no parameter it holds"
    return None
