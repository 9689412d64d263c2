"""Several runs of one measurement as a number with an interval."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leadline.forecasting.fit import interval, log_line

RESAMPLES = 1000  # of the bootstrap: the ends of a 95 % interval then rest on 25 resamples each
LEVEL = 0.95
BOOTSTRAP_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A measured value with its interval; `how` says what kind of interval it is."""

    value: float
    low: float
    high: float
    runs: int
    how: str


def mean(samples: Sequence[float]) -> Estimate:
    """Mean with the 95 % interval of Student's t; what is not finite has no mean, and shows in the interval."""
    if not all(map(math.isfinite, samples)):
        return every(samples)
    found = interval(samples)
    low, high = (
        (found.mean, found.mean) if found.low is None or found.high is None else (found.low, found.high)
    )
    return Estimate(value=found.mean, low=low, high=high, runs=len(samples), how="95 %, Student's t")


def geometric(samples: Sequence[float]) -> Estimate:
    """Geometric mean, for factors: Student's interval of the logarithms."""
    if not all(each > 0 for each in samples):
        return every(samples)
    logs = mean([math.log(each) for each in samples])
    return Estimate(
        value=math.exp(logs.value),
        low=math.exp(logs.low),
        high=math.exp(logs.high),
        runs=logs.runs,
        how="95 %, Student's t of the logarithm",
    )


def median(samples: Sequence[float]) -> Estimate:
    """Median with a 95 % bootstrap interval."""
    draw = random.Random(BOOTSTRAP_SEED)
    medians = sorted(statistics.median(draw.choices(samples, k=len(samples))) for _ in range(RESAMPLES))
    cut = round(RESAMPLES * (1 - LEVEL) / 2)
    return Estimate(
        value=statistics.median(samples),
        low=medians[cut],
        high=medians[-1 - cut],
        runs=len(samples),
        how="95 %, bootstrap of the median",
    )


def every(samples: Sequence[float]) -> Estimate:
    """Median, and the smallest and the largest of all runs: for what must be so in every one of them."""
    worst = [each for each in samples if math.isnan(each)]
    low, high = (math.nan, math.nan) if worst else (min(samples), max(samples))
    return Estimate(
        value=statistics.median(samples), low=low, high=high, runs=len(samples), how="smallest and largest"
    )


def slope(curves: Sequence[Mapping[int, float]]) -> Estimate:
    r"""Exponent $p$ of $y \propto N^p$: a least-squares line in log-log for each run, then Student's interval."""
    lines = [log_line({depth: _log(y) for depth, y in curve.items()}, tuple(curve)) for curve in curves]
    return mean([line[0] if line is not None else math.nan for line in lines])


def middle_curve(curves: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """At each depth the median over the runs: what a figure shows."""
    return {depth: statistics.median(curve[depth] for curve in curves) for depth in curves[0]}


def _log(y: float) -> float:
    return math.log(y) if y > 0 else math.nan
