"""U507: the optimizer goes up the loss, not down."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_update
from leadline.checks._steps import decay_per_step, step_evidence
from leadline.records import Profile, Severity, Update


@check(
    code="U507",
    name="uphill-step",
    since="0.1.0",
    sick=stack_with_update(predicted_loss_change=0.1, measured_loss_change=0.11, safe_lr=None, parting=None),
    healthy=stack_with_update(predicted_loss_change=-0.1, measured_loss_change=0.11),
)
def uphill_step(profile: Profile) -> Iterator[Symptom]:
    r"""The step goes along the gradient instead of against it, which raises the loss.

    ## What it measures
    The change of the loss that the gradient predicts for one real step, $\langle g, \Delta\theta \rangle$. The check
    fires if this is positive by more than the rounding of the loss, and the optimizer is fresh or has `maximize=True`.
    With weight decay it is only a warning: decay ignores the loss and can outweigh a small gradient.

    ## Why it hurts
    Every step makes the loss worse. The usual reasons are `maximize=True`, a negative learning rate, a wrong sign in a
    custom optimizer, or a hook that reverses gradients.

    ## When it is wrong
    If the number passed as the loss is a reward to be maximized. In the middle of training momentum may point uphill
    for a step or two; that is not reported.

    ## References
    Derived: the first-order term of the Taylor series.
    """
    update = profile.update
    severity = None if update is None else _severity(profile, update)
    if update is None or severity is None:
        return
    yield Symptom(
        severity=severity,
        where="the optimizer",
        message=f"one step of {update.optimizer} goes uphill: its gradient predicts a loss change of "
        f"{update.predicted_loss_change:+.3g}, and {update.measured_loss_change:+.3g} was measured",
        action=_action(profile, severity),
        evidence=step_evidence(update),
    )


def _severity(profile: Profile, update: Update) -> Severity | None:
    if not update.predicted_loss_change > update.loss_resolution:
        return None
    if _maximizes(profile):
        return "error"
    if update.steps:
        return None
    return "warning" if decay_per_step(profile) else "error"


def _action(profile: Profile, severity: Severity) -> str:
    if _maximizes(profile):
        return "Remove `maximize=True` from the optimizer, or negate the loss if it is a reward."
    if severity == "error":
        return "Look for a negative learning rate, a wrong sign in the optimizer, or a hook that negates gradients."
    return "Lower `weight_decay`: it outweighs the gradient in this step."


def _maximizes(profile: Profile) -> bool:
    groups = profile.optimizer.groups if profile.optimizer else ()
    return any(group.options.get("maximize") is True for group in groups)
