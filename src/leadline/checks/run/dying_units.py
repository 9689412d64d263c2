"""T804: more and more units are zero for every input."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import BLOCKS, every_block, vector_history
from leadline.checks._history import History
from leadline.checks._statistics import Trend, affected_blocks, steps_to

# Calibrated by benchmarks/alarms.py: share of the units; small healthy layers have up to a fifth of dead units.
MIN_DEAD_SHARE = 0.25
# Calibrated by benchmarks/alarms.py: share of the units that died since the oldest sample.
MIN_RISE = 0.15
# Heuristic: with half of the units gone, a layer that keeps losing them is an error.
MIN_ERROR_SHARE = 0.5


@check(
    code="T804",
    name="dying-units",
    since="0.1.0",
    needs=("dead",),
    sick=vector_history(400, {"dead": lambda step: [0.05] * (BLOCKS - 2) + [step / 500] * 2}, every=20),
    healthy=vector_history(400, {"dead": every_block(0.3)}, every=20),
    every=8,
    calm=256,
)
def dying_units(history: History) -> Iterator[Symptom]:
    r"""A growing share of units is zero on every sample of the batch.

    ## What it measures
    On sampled steps, the share $d$ of each block's units (not elements) that are zero for all samples of the batch.
    Fires where at least `MIN_DEAD_SHARE` = 25 % are dead and this share rose by `MIN_RISE` = 15 percentage points since
    the oldest sample in the history. An error where more than half of the units are dead and the rest will follow
    within as many steps as the history covers.

    ## Why it hurts
    A ReLU unit that is off for every input has no gradient and stays off: the layer becomes narrower for good. The
    usual cause is a step that pushed its bias far down, so a learning rate that is too high for a moment does lasting
    damage.

    ## When it is wrong
    Small batches show few of the inputs on which a unit is on: the share is then an upper bound. Sparse codes are
    meant to be off nearly always. A share that is high from the start is left to the model checks (F codes).

    ## References
    Lu et al., "Dying ReLU and initialization: theory and numerical examples", 2019.
    """
    blocks = affected_blocks(history, "dead", _is_dying)
    if blocks is None:
        return
    worst = blocks.worst
    remaining = steps_to(1.0, worst)
    covered = (history.step or 0) - history.spaced("dead").steps[0]
    hopeless = worst.last > MIN_ERROR_SHARE and remaining is not None and remaining < covered
    foreseen = remaining is not None and worst.slope > 0
    yield Symptom(
        severity="error" if hopeless else "warning",
        where=blocks.where,
        layers=blocks.layers,
        since=blocks.since,
        message=f"dead units rose from {100 * worst.first:.0f} % to {100 * worst.last:.0f} % since step {blocks.since}",
        action="Lower the learning rate, or replace ReLU by an activation that always has a gradient, such as "
        "`nn.GELU()`.",
        trend=worst.slope / max(worst.last, 1e-9),
        forecast=f"none will be left in about {remaining:.0f} steps" if foreseen else "",
        evidence={"dead": worst.last, "dead_before": worst.first},
    )


def _is_dying(trend: Trend) -> bool:
    return trend.last >= MIN_DEAD_SHARE and trend.last - trend.first >= MIN_RISE
