"""T807: residual branches outgrow the stream they are added to."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._history import History
from leadline.checks._run_examples import BLOCKS, flat, sampled
from leadline.checks._statistics import Trend, gathered

LEAST = 1.0  # branch over skip; derived: above it the block overwrites more than it keeps
GROWTH = 3.0  # times what it was at the beginning of the history; calibrated by the same script


@check(
    code="T807",
    name="branch-takeover",
    since="0.1",
    needs=("branch_skip",),
    sick=sampled(400, {"branch_skip": lambda step: [0.3] * (BLOCKS - 2) + [0.3 + step / 50] * 2}, every=20),
    healthy=sampled(400, {"branch_skip": flat(0.8)}, every=20),
    every=8,
    calm=256,
)
def branch_takeover(history: History) -> Iterator[Symptom]:
    r"""Residual branches grow until they, not the skip, carry the signal.

    ## What it measures
    On sampled steps, the root mean square of each block's branch over that of its skip at the add. Fires where the
    ratio is above `LEAST` = 1 and `GROWTH` = 3 times what it was at the beginning of the history.

    ## Why it hurts
    A residual stack is easy to train because each block changes the stream a little. A branch larger than its
    skip overwrites it: gradients no longer pass by, and in a stream without a norm the next block is fed several
    times more. Growth like this is how a run with a rate that is too high announces itself before the loss does.

    ## When it is wrong
    First blocks read an embedding that is small by design, and their branches are larger than it.

    ## References
    Takase et al., "Spike no more: stabilizing the pre-training of large language models", 2023 (small sub-layers,
    large shortcut); De and Smith, "Batch normalization biases residual blocks towards the identity function", 2020.
    """
    place = gathered(history, "branch_skip", _takes_over)
    if place is None:
        return
    worst = place.worst
    yield Symptom(
        severity="warning",
        where=place.where,
        layers=place.layers,
        since=place.since,
        message=f"branches grew from {worst.first:.2g} to {worst.last:.2g} times their skip since step {place.since}",
        trend=worst.pace,
        forecast=f"ten times as large in about {math.log(10) / worst.pace:.0f} steps"
        if worst.pace > 0
        else "",
        evidence={"branch_over_skip": worst.last, "before": worst.first},
    )


def _takes_over(trend: Trend) -> bool:
    return trend.last >= LEAST and trend.last >= GROWTH * max(trend.first, 0.0)
