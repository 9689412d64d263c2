"""T805: the norm of scale-invariant weights drifts, and with it their effective learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from leadline.checks._check import Symptom, check
from leadline.checks._examples import BLOCKS, INVARIANT, every_block, vector_history
from leadline.checks._history import History
from leadline.checks._ranges import locate_parameters
from leadline.checks._statistics import Trend, trends

# Calibrated by benchmarks/alarms.py: change of a weight's norm over the history; healthy runs stay below.
MIN_NORM_FACTOR = 2.0


@check(
    code="T805",
    name="rate-drift",
    since="0.1.0",
    needs=("weight_norm",),
    sick=vector_history(
        600, {"weight_norm": lambda step: [5.0 * math.exp(step / 400)] * BLOCKS}, layout=INVARIANT
    ),
    healthy=vector_history(600, {"weight_norm": every_block(5.0)}, layout=INVARIANT),
    every=64,
    calm=512,
)
def rate_drift(history: History) -> Iterator[Symptom]:
    r"""Weights before a norm grow or shrink, and so the rate at which they learn changes.

    ## What it measures
    For each weight whose scale does not change the network's function (because a norm follows), its norm $\|w\|$ at
    the end of the history over that at its beginning. Fires where this factor $f$ exceeds `MIN_NORM_FACTOR` = 2 or
    falls below 1/2. Such a weight learns by turning: one step turns it by $\eta\|g\|/\|w\|$, and $\|g\|$ is
    proportional to $1/\|w\|$, so the effective learning rate has changed by $1/f^2$ with SGD and by $1/f$ with Adam, no
    matter what the schedule says.

    ## Why it hurts
    Without weight decay $\|w\|$ can only grow (the gradient is orthogonal to it), and learning fades out. With too much
    decay it shrinks until steps turn the weight at random. Layers drift apart from each other, and no schedule shows
    it.

    ## When it is wrong
    A drift early in training, toward the equilibrium that learning rate and decay set, is expected; it is a note
    then.

    ## References
    van Laarhoven, "L2 regularization versus batch and weight normalization", 2017; Li and Arora, "An exponential
    learning rate schedule for deep learning", 2020.
    """
    invariant = history.layout.invariant
    if not any(invariant):
        return
    norms = trends(history.spaced("weight_norm"))
    drifting = [trend for trend in norms if invariant[trend.index] and _drifts(trend)]
    if not drifting:
        return
    factor = median(trend.last / trend.first for trend in drifting)
    where, layers = locate_parameters(history.layout, [trend.index for trend in drifting])
    yield Symptom(
        severity="info" if 1 / MIN_NORM_FACTOR**2 < factor < MIN_NORM_FACTOR**2 else "warning",
        where=where,
        layers=layers,
        since=min(trend.since for trend in drifting),
        message=f"the norm of scale-invariant weights changed by a factor of {factor:.2g}, so their effective learning "
        f"rate is {1 / factor:.2g} (Adam) to {1 / factor**2:.2g} (SGD) times the scheduled one",
        action="Add weight decay to these weights, so that their norm settles."
        if factor > 1
        else "Lower the weight decay of these weights.",
        trend=median(trend.log_slope for trend in drifting),
        forecast="without weight decay they only grow" if factor > 1 else "",
        evidence={"factor": factor, "parameters": float(len(drifting))},
    )


def _drifts(trend: Trend) -> bool:
    known = 0 < trend.first < math.inf and 0 < trend.last < math.inf
    return known and not 1 / MIN_NORM_FACTOR <= trend.last / trend.first <= MIN_NORM_FACTOR
