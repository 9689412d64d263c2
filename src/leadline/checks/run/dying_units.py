"""T804: more and more units answer nothing to every input."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._history import History
from leadline.checks._run_examples import BLOCKS, flat, sampled
from leadline.checks._statistics import Trend, gathered, steps_to

LEAST = 0.25  # of the units dead; calibrated by benchmarks/alarms.py: small healthy layers have up to a fifth
RISE = 0.15  # of the units, since the oldest sample; calibrated by the same script


@check(
    code="T804",
    name="dying-units",
    since="0.1",
    needs=("dead",),
    sick=sampled(400, {"dead": lambda step: [0.05] * (BLOCKS - 2) + [step / 500] * 2}, every=20),
    healthy=sampled(400, {"dead": flat(0.3)}, every=20),
    every=8,
    calm=256,
)
def dying_units(history: History) -> Iterator[Symptom]:
    r"""A growing share of units is zero on every sample of the batch.

    ## What it measures
    On sampled steps, the share $d$ of each block's units (not elements) that are zero for all samples of the batch.
    Fires where at least `LEAST` = 25 % are dead and this share rose by `RISE` = 15 points since the oldest sample in
    the history. An error where half of the units are gone and the rest will follow within as many steps as were seen.

    ## Why it hurts
    A ReLU unit that is off for every input has no gradient and stays off: the layer becomes narrower for good. The
    usual cause is a step that threw its bias far down, so a rate that was too high for a moment is paid for ever.

    ## When it is wrong
    Small batches show few of the inputs on which a unit is on: the share is then an upper bound. Sparse codes are
    meant to be off nearly always. A share that was high from the start is F-rules' business, not a trend.

    ## References
    Lu et al., "Dying ReLU and initialization: theory and numerical examples", 2019.
    """
    place = gathered(history, "dead", _is_dying)
    if place is None:
        return
    worst, left = place.worst, steps_to(1.0, place.worst)
    seen = (history.step or 0) - history.spaced("dead").steps[0]
    yield Symptom(
        severity="error" if worst.last > 0.5 and left is not None and left < seen else "warning",
        where=place.where,
        layers=place.layers,
        since=place.since,
        message=f"dead units rose from {worst.first:.0%} to {worst.last:.0%} since step {place.since}",
        trend=worst.slope / max(worst.last, 1e-9),
        forecast=f"none will be left in about {left:.0f} steps"
        if left is not None and worst.slope > 0
        else "",
        evidence={"dead": worst.last, "dead_before": worst.first},
    )


def _is_dying(trend: Trend) -> bool:
    return trend.last >= LEAST and trend.last - trend.first >= RISE
