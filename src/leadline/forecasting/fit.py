r"""Fitting $y \sim N^p$ over depths, with an interval over seeds; and where a fitted line crosses a level."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leadline.records import Exponent

DEEP = (
    8  # measured by benchmarks/update_exponents.py: below, corrections in 1/N shift a slope by more than 0.1
)
FEWEST = 3  # depths for a slope: with two, a bend cannot be told from a law
# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom (standard table); then the normal one.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
STUDENT_MORE, NORMAL = 2.228, 1.960

Curve = Mapping[int, float]
"""Natural logarithm of a quantity, by depth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    mean: float
    low: float | None
    high: float | None


def deeper_part(depths: Sequence[int]) -> tuple[int, ...]:
    """The depths that a law of depth is fitted on: from 8 blocks on, or the deepest three."""
    deep = [depth for depth in depths if depth >= DEEP]
    return tuple(deep if len(deep) >= FEWEST else depths[-FEWEST:])


def fit_exponent(curves: Sequence[Curve], depths: Sequence[int]) -> Exponent | None:
    """Slope of log quantity against log depth, one curve a seed; None if no seed has two finite points."""
    used = deeper_part(depths)
    slopes = [line[0] for curve in curves if (line := log_line(curve, used)) is not None]
    if not slopes:
        return None
    found = interval(slopes)
    return Exponent(value=found.mean, low=found.low, high=found.high, seeds=len(slopes), depths=used)


def log_line(curve: Curve, depths: Sequence[int]) -> tuple[float, float] | None:
    """Slope and intercept of a least-squares line through (log depth, log quantity)."""
    points = [
        (math.log(depth), curve[depth]) for depth in depths if math.isfinite(curve.get(depth, math.nan))
    ]
    if len(points) < 2:
        return None
    fitted = statistics.linear_regression(*zip(*points, strict=True))
    return fitted.slope, fitted.intercept


def crossing(curve: Curve, depths: Sequence[int], level: float) -> float | None:
    """Depth at which the fitted power law falls through `level` (a logarithm); None if it does not fall."""
    line = log_line(curve, depths)
    if line is None or line[0] >= 0:
        return None
    power = (level - line[1]) / line[0]
    return math.exp(power) if power < math.log(1e9) else None


def linear_crossing(curve: Curve, depths: Sequence[int], level: float) -> float | None:
    """Depth at which a quantity that grows in proportion to depth (e-folds do) reaches `level`."""
    points = [(depth, curve[depth]) for depth in depths if math.isfinite(curve.get(depth, math.nan))]
    if len(points) < 2:
        return None
    fitted = statistics.linear_regression(*zip(*points, strict=True))
    return (level - fitted.intercept) / fitted.slope if fitted.slope > 0 else None


def interval(samples: Sequence[float]) -> Interval:
    """Mean and its 95 % interval by Student's t; no interval for a single sample."""
    mean = statistics.fmean(samples)
    if len(samples) < 2:
        return Interval(mean=mean, low=None, high=None)
    half = student(len(samples) - 1) * statistics.stdev(samples) / math.sqrt(len(samples))
    return Interval(mean=mean, low=mean - half, high=mean + half)


def student(freedom: int) -> float:
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    return STUDENT_MORE if freedom < 30 else NORMAL
