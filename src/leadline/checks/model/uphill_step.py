"""U507: the step goes up the loss, not down."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stepped
from leadline.checks._steps import decay_a_step, evidence, promise
from leadline.records import Profile, Severity, Update


@check(
    code="U507",
    name="uphill-step",
    since="0.1",
    sick=stepped(predicted_loss_change=0.1, measured_loss_change=0.11, safe_lr=None, parting=None),
    healthy=stepped(predicted_loss_change=-0.1, measured_loss_change=0.11),
)
def uphill_step(profile: Profile) -> Iterator[Symptom]:
    r"""The step goes along the gradient instead of against it: it promises a higher loss.

    ## What it measures
    The change of the loss that the gradient promises of one real step, $\langle g, \Delta\theta \rangle$. Fires where
    it is positive, by more than the rounding of a loss, and the optimiser is fresh or says `maximize=True`. With weight
    decay it is a warning only: decay, which does not look at the loss, can outweigh a small gradient.

    ## Why it hurts
    Every step undoes what the loss asks for. Usual reasons: `maximize=True`, a negative rate, a sign in a custom
    optimiser, gradients that a hook turns round.

    ## When it is wrong
    If the number that was passed as loss is a reward, to be maximised. Inside training, momentum may well point uphill
    for a step or two; that is not reported.

    ## References
    Derived: the first order of Taylor's series.
    """
    update = profile.update
    severity = None if update is None else _severity(profile, update)
    if update is None or severity is None:
        return
    why = (
        "its optimiser is told to maximise"
        if _maximizes(profile)
        else "look for a negative rate or a lost sign"
        if severity == "error"
        else "weight decay outweighs the gradient"
    )
    yield Symptom(
        severity=severity,
        where="the optimiser",
        message=f"one step of {update.optimizer} {promise(update)}: it goes up the loss; {why}",
        evidence=evidence(update),
    )


def _severity(profile: Profile, update: Update) -> Severity | None:
    if not update.predicted_loss_change > update.loss_resolution:
        return None
    if _maximizes(profile):
        return "error"
    if update.steps:
        return None
    return "warning" if decay_a_step(profile) else "error"


def _maximizes(profile: Profile) -> bool:
    groups = profile.optimizer.groups if profile.optimizer else ()
    return any(group.options.get("maximize") is True for group in groups)
