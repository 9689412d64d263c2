"""U509: the first steps throw the loss up, and nothing is learned."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_update
from leadline.records import Margin, Profile, Rehearsal

RISE = 1.3  # times the lowest loss so far; calibrated by benchmarks/verdicts, where 1.1 to 1.5 tell as many apart
ABOVE = 0.1  # of the loss of a constant output; ours: what ends nearer may have learned how often answers are right


def _rehearsed(losses: Sequence[float]) -> Profile:
    return replace(stack_with_update(), rehearsal=Rehearsal(losses=tuple(losses), constant=2.2))


def _margins(profile: Profile) -> Iterator[Margin]:
    if profile.rehearsal is not None:
        quantity = "highest loss of the rehearsal over the lowest before it"
        yield Margin(quantity=quantity, value=profile.rehearsal.rise, limit=RISE)


@check(
    code="U509",
    name="restless-steps",
    since="0.1.0",
    margins=_margins,
    sick=_rehearsed([2.3, 2.2, 9.0, 3.0, 5.0]),
    healthy=_rehearsed([2.3, 2.2, 2.4, 2.0, 1.7]),
)
def restless_steps(profile: Profile) -> Iterator[Symptom]:
    r"""A few steps on one batch throw the loss up, and end no better than a constant output.

    ## What it measures
    A rehearsal: the user's optimiser makes up to sixteen steps on the batch at hand, which are undone. Fires where some
    step takes the loss to more than `RISE` = 1.3 times the lowest value before it (or to no number at all), and the
    last loss is more than a tenth above that of the best constant output (for classes, the entropy of their shares in
    the batch). An error where the loss becomes no number or more than twice what it was.

    ## Why it hurts
    One batch, seen over and over, is the easiest thing there is to learn. Steps that undo each other there are too long
    for the sharpest direction of the loss; new batches only add noise. Networks that begin at zero (ReZero, Fixup) show
    it only now: their first step moves little, and the second meets branches that have opened.

    ## When it is wrong
    If the rate warms up from far below: the rehearsal holds it where the optimiser has it now. Adam's first steps are
    its boldest, and some networks that are thrown settle later.

    ## References
    Cohen et al., "Gradient descent on neural networks typically occurs at the edge of stability", 2021. Thresholds:
    `benchmarks/verdicts`.
    """
    seen = profile.rehearsal
    if seen is None or seen.progress is None or seen.progress > -ABOVE or seen.rise <= RISE:
        return
    first, last = seen.losses[0], seen.losses[-1]
    peak = max(seen.losses, key=lambda loss: loss if math.isfinite(loss) else math.inf)
    rate = None if profile.update is None else profile.update.lr
    at = "" if rate is None else f" at rate {rate:.3g}"
    yield Symptom(
        severity="error" if seen.has_spike else "warning",
        where="the optimiser",
        message=f"{seen.steps} steps{at} on one and the same batch take the loss from {first:.3g} to {last:.3g}, "
        f"up to {peak:.3g} on the way: lower the rate, or warm up",
        evidence={"first": first, "last": last, "rise": seen.rise, "steps": float(seen.steps)},
    )
