"""U502: one step goes far beyond the region in which the gradient describes the loss."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_update
from leadline.checks._steps import (
    MAX_RATE_RATIO,
    long_step_severity,
    lower_rate_action,
    new_loss,
    optimizer_family,
    rate_over_safe_rate,
    share_of_repeated_blocks,
    step_evidence,
)
from leadline.records import Margin, Profile


def _margins(profile: Profile) -> Iterator[Margin]:
    beyond = rate_over_safe_rate(profile.update)
    if beyond is not None:
        limit = MAX_RATE_RATIO[optimizer_family(profile) or "adam"]
        yield Margin(quantity="rate over the safe rate", value=beyond, limit=limit)


@check(
    code="U502",
    name="step-too-long",
    since="0.1.0",
    refuted_by="falling",
    explains=("U504", "U509"),
    margins=_margins,
    sick=stack_with_update(shares=[0.7, 0.2, 0.1], safe_lr=1e-5, measured_loss_change=0.8, ratio=-8.0),
    healthy=stack_with_update(shares=[0.7, 0.2, 0.1], safe_lr=3e-4),
)
def step_too_long(profile: Profile) -> Iterator[Symptom]:
    r"""One step leaves the region in which the loss follows its gradient.

    ## What it measures
    The loss along one real step of the optimizer, at a few multiples of the step. The safe rate is the one at which
    the measured change of the loss differs by half from the predicted change $\langle g, \Delta\theta \rangle$. The
    check fires if the user's rate exceeds a multiple of the safe rate (`MAX_RATE_RATIO`: 10 for steps linear in the
    gradient such as SGD, 64 for steps independent of its scale such as Adam) and the step as made does not lower the
    loss: networks whose first step lowered it learned (`tests/readings/update`). With heavy-ball momentum $\beta$ the
    safe rate is that of the sustained step, which is $1/(1-\beta)$ times the first one.

    ## Why it hurts
    Up to twice the safe rate a step still lowers a quadratic loss. Far beyond that it raises the loss, and the next
    gradient corrects a network that has lost what it had learned. In `benchmarks/update_limits.py` one run in sixty
    learned at four times the limits of this check.

    ## When it is wrong
    Losses are not quadratic: the loss of some networks jumps, they land in a flatter region (a catapult), and learn. A
    warm-up shortens the first steps, and the check cannot see it. One batch may be unusual: check again with another.

    ## References
    Cohen et al., "Gradient descent on neural networks typically occurs at the edge of stability", 2021, section 2;
    Lewkowycz et al., "The large learning rate phase of deep learning: the catapult mechanism", 2020.
    """
    update = profile.update
    severity = long_step_severity(update)
    many_blocks = share_of_repeated_blocks(profile) is not None  # U501 reports these
    if update is None or severity is None or many_blocks:
        return
    yield Symptom(
        severity=severity,
        where=_where(profile),
        message=f"the learning rate {update.lr:.3g} is {rate_over_safe_rate(update):.3g} times the safe rate: one step "
        f"{new_loss(update)} but its gradient predicts {update.predicted_loss_change:+.3g}",
        action=lower_rate_action(update),
        evidence=step_evidence(update),
    )


def _where(profile: Profile) -> str:
    """The block with the largest share of the step."""
    blocks = () if profile.update is None else profile.update.blocks
    known = [block for block in blocks if block.share is not None]
    return max(known, key=lambda block: block.share or 0.0).name if known else "the whole model"
