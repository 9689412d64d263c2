"""T805: scale-invariant weights outgrow the learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from leadline.checks._check import Symptom, check
from leadline.checks._history import History
from leadline.checks._ranges import of_parameters
from leadline.checks._run_examples import BLOCKS, INVARIANT, flat, sampled
from leadline.checks._statistics import Trend, trends

FACTOR = (
    2.0  # of a weight's norm over the history; calibrated by benchmarks/alarms.py: healthy runs stay below
)


@check(
    code="T805",
    name="rate-drift",
    since="0.1",
    needs=("weight_norm",),
    sick=sampled(600, {"weight_norm": lambda step: [5.0 * math.exp(step / 400)] * BLOCKS}, layout=INVARIANT),
    healthy=sampled(600, {"weight_norm": flat(5.0)}, layout=INVARIANT),
    every=64,
    calm=512,
)
def rate_drift(history: History) -> Iterator[Symptom]:
    r"""Weights in front of a norm grow or shrink, and with them the rate at which they learn.

    ## What it measures
    The norm $\|w\|$ of each weight of which the network's function does not depend on the scale (in front of a norm),
    at the end of the history over its beginning. Fires where the factor $f$ exceeds `FACTOR` = 2 or falls below 1/2.
    Such a weight learns by turning: one step turns it by $\eta\|g\|/\|w\|$, and $\|g\|$ goes with $1/\|w\|$, so the
    effective rate has changed by $1/f^2$ with SGD and by $1/f$ with Adam, whatever the schedule says.

    ## Why it hurts
    Without weight decay $\|w\|$ can only grow (the gradient is orthogonal to it), and learning fades out; with too
    much decay it shrinks until steps turn the weight at random. Layers drift apart from each other, and no schedule
    sees it.

    ## When it is wrong
    A drift early in training, towards the equilibrium that the rate and the decay set, is expected; it is a note
    then.

    ## References
    van Laarhoven, "L2 regularization versus batch and weight normalization", 2017; Li and Arora, "An exponential
    learning rate schedule for deep learning", 2020.
    """
    marked = history.layout.invariant
    if not any(marked):
        return
    drifted = [each for each in trends(history.spaced("weight_norm")) if marked[each.index] and _drifts(each)]
    if not drifted:
        return
    factor = median(each.last / each.first for each in drifted)
    where, layers = of_parameters(history.layout, [each.index for each in drifted])
    yield Symptom(
        severity="info" if 1 / FACTOR**2 < factor < FACTOR**2 else "warning",
        where=where,
        layers=layers,
        since=min(each.since for each in drifted),
        message=f"scale-invariant weights changed their norm by a factor of {factor:.2g}: their effective rate is "
        f"{1 / factor:.2g} (Adam) to {1 / factor**2:.2g} (SGD) times what the schedule says",
        trend=median(each.pace for each in drifted),
        forecast="without weight decay they only grow" if factor > 1 else "",
        evidence={"factor": factor, "parameters": float(len(drifted))},
    )


def _drifts(trend: Trend) -> bool:
    known = 0 < trend.first < math.inf and 0 < trend.last < math.inf
    return known and not 1 / FACTOR <= trend.last / trend.first <= FACTOR
