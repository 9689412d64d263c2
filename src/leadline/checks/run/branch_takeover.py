"""T807: residual branches outgrow the skip they are added to."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import BLOCKS, every_block, vector_history
from leadline.checks._history import History
from leadline.checks._statistics import Trend, affected_blocks

# Derived: above a ratio of 1 the block overwrites more of the stream than it keeps.
MIN_BRANCH_OVER_SKIP = 1.0
# Calibrated by benchmarks/alarms.py: ratio at the end of the history over that at its beginning.
MIN_GROWTH = 3.0


@check(
    code="T807",
    name="branch-takeover",
    since="0.1.0",
    needs=("branch_skip",),
    sick=vector_history(
        400, {"branch_skip": lambda step: [0.3] * (BLOCKS - 2) + [0.3 + step / 50] * 2}, every=20
    ),
    healthy=vector_history(400, {"branch_skip": every_block(0.8)}, every=20),
    every=8,
    calm=256,
)
def branch_takeover(history: History) -> Iterator[Symptom]:
    r"""Residual branches grow until they, not the skip, carry the signal.

    ## What it measures
    On sampled steps, the root mean square of each block's branch over that of its skip at the add. Fires where the
    ratio is at least `MIN_BRANCH_OVER_SKIP` = 1 and `MIN_GROWTH` = 3 times what it was at the beginning of the
    history.

    ## Why it hurts
    A residual stack is easy to train because each block changes the stream a little. A branch larger than its skip
    overwrites it: gradients no longer pass by the branch, and in a stream without a norm the next block gets an input
    several times larger. A learning rate that is too high often causes this growth before the loss shows it.

    ## When it is wrong
    First blocks read an embedding that is small by design, and their branches are larger than it.

    ## References
    Takase et al., "Spike no more: stabilizing the pre-training of large language models", 2023 (small sub-layers,
    large shortcut); De and Smith, "Batch normalization biases residual blocks towards the identity function", 2020.
    """
    blocks = affected_blocks(history, "branch_skip", _takes_over)
    if blocks is None:
        return
    worst = blocks.worst
    tenfold = math.log(10) / worst.log_slope if worst.log_slope > 0 else None
    yield Symptom(
        severity="warning",
        where=blocks.where,
        layers=blocks.layers,
        since=blocks.since,
        message=f"residual branches grew from {worst.first:.2g} to {worst.last:.2g} times the RMS of their skip "
        f"since step {blocks.since}",
        action="Lower the learning rate, or put a norm at the start of each branch (pre-norm).",
        trend=worst.log_slope,
        forecast="" if tenfold is None else f"ten times as large in about {tenfold:.0f} steps",
        evidence={"branch_over_skip": worst.last, "before": worst.first},
    )


def _takes_over(trend: Trend) -> bool:
    return trend.last >= MIN_BRANCH_OVER_SKIP and trend.last >= MIN_GROWTH * max(trend.first, 0.0)
