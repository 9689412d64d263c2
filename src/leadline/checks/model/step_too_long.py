"""U502: one step goes far beyond where the gradient is to be trusted."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stepped
from leadline.checks._steps import BEYOND, evidence, excess, optimizer_family, promise, spread, too_long
from leadline.records import Margin, Profile


def _margins(profile: Profile) -> Iterator[Margin]:
    beyond = excess(profile.update)
    if beyond is not None:
        limit = BEYOND[optimizer_family(profile) or "adam"]
        yield Margin(quantity="rate over the safe rate", value=beyond, limit=limit)


@check(
    code="U502",
    name="step-too-long",
    since="0.1",
    refuted_by="falling",
    explains=("U504", "U509"),
    margins=_margins,
    sick=stepped(shares=[0.7, 0.2, 0.1], safe_lr=1e-5, measured_loss_change=0.8, ratio=-8.0),
    healthy=stepped(shares=[0.7, 0.2, 0.1], safe_lr=3e-4),
)
def step_too_long(profile: Profile) -> Iterator[Symptom]:
    r"""One step leaves the region in which the loss follows its gradient.

    ## What it measures
    The loss along one real step of the optimiser, at a few multiples of it: where measured and promised change
    $\langle g, \Delta\theta \rangle$ differ by half lies the safe rate. Fires where the user's rate is more than a
    multiple of it (10 for steps linear in the gradient, SGD, 64 for those free of its scale, Adam) and the step as it
    is made does not lower the loss: networks whose first step did learned (`tests/updating`). With heavy-ball momentum
    $\beta$ the safe rate is that of the sustained step, $1/(1-\beta)$ times the first one.

    ## Why it hurts
    Up to twice the safe rate a step still lowers a quadratic loss; far beyond it raises it, and what the next gradient
    corrects is no longer what the network had learned. In the networks of `benchmarks/update_limits.py` one run in
    sixty learned at four times the limits of this rule.

    ## When it is wrong
    Losses are not quadratic: some networks are thrown out and come back at a flatter place (a catapult), and learn. A
    warm-up shortens the first steps and cannot be seen from here. One batch may be odd: ask again with another.

    ## References
    Cohen et al., "Gradient descent on neural networks typically occurs at the edge of stability", 2021, section 2;
    Lewkowycz et al., "The large learning rate phase of deep learning: the catapult mechanism", 2020.
    """
    update = profile.update
    severity = None if update is None else too_long(update)
    if update is None or severity is None or spread(profile) is not None:  # many small parts: U501
        return
    yield Symptom(
        severity=severity,
        where=_where(profile),
        message=f"one step {promise(update)}; the rate {update.lr:.3g} is {excess(update):.3g}x "
        f"the {update.safe_lr:.3g} up to which a step does what its gradient promises: lower it, or warm up",
        evidence=evidence(update),
    )


def _where(profile: Profile) -> str:
    """The block with the largest part of the step."""
    blocks = () if profile.update is None else profile.update.blocks
    known = [block for block in blocks if block.share is not None]
    return max(known, key=lambda block: block.share or 0.0).name if known else "the whole model"
