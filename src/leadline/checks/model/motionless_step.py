"""U508: the step is exactly zero."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_update
from leadline.checks._steps import is_warming_up
from leadline.records import GraphCut, Profile, Update
from leadline.tracer.cuts import remedy


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
    r"""Nothing is learned from this batch: the learning rate or the gradient is zero.

    ## What it measures
    One real step. It is an error if the gradient of every parameter that the optimizer holds is exactly 0, and a
    warning if all learning rates are exactly 0. With a learning rate scheduler, which will change them, the latter is a
    note. (U506 reports a step that is lost in rounding.)

    ## Why it hurts
    Nothing moves, or only by weight decay. A gradient of exactly zero usually means that autograd sees no dependence of
    the loss on the parameters: a factor of zero, a saturated or clamped output, dead units everywhere, an argmax or a
    rounding.

    ## When it is wrong
    Many warm-ups start at a learning rate of exactly zero, and one that is not a `torch.optim.lr_scheduler` is not
    recognized: check again a few steps later. A hinge loss that a trained model satisfies is zero, and so is its
    gradient: in the middle of training, a loss of zero is not reported.

    ## References
    Derived.
    """
    update = profile.update
    if update is None:
        return
    if update.lr == 0:
        yield Symptom(
            severity="info" if is_warming_up(profile) else "warning",
            where="the optimizer",
            message=f"one step of {update.optimizer} changes nothing: its learning rate is 0",
            action="Set a learning rate above 0, or check again a few steps later if this is the start of a warm-up.",
            evidence=_evidence(update),
        )
    elif update.grad_square == 0 and not (update.steps and update.loss == 0):
        yield Symptom(
            severity="error",
            where="the optimizer",
            message=f"one step of {update.optimizer} learns nothing: the gradient of all {len(update.parameters)} "
            "parameter tensors is exactly 0",
            action=_action(profile.cuts),
            evidence=_evidence(update),
        )


def _action(cuts: Sequence[GraphCut]) -> str:
    zero = next((cut for cut in cuts if cut.how == "zero"), None)
    if zero is not None:
        return f"{remedy(zero)}."
    return (
        "Look for what makes the loss independent of the parameters: a factor of 0, a clamped or saturated output, "
        "dead units, an argmax or a rounding."
    )


def _evidence(update: Update) -> dict[str, float]:
    return {"update_norm": update.update_norm, "grad_square": update.grad_square, "loss": update.loss}
