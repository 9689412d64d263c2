"""Robust statistics and trends for run checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from leadline.checks._history import History, Rows
from leadline.checks._ranges import layer_names, span

GAUSSIAN = 1.4826  # standard deviation over median absolute deviation of a Gaussian (derived: 1/Phi^-1(3/4))


def spread(values: Sequence[float], middle: float | None = None) -> float:
    """Standard deviation, by the median of the distances from the median."""
    centre = median(values) if middle is None else middle
    return GAUSSIAN * median(abs(each - centre) for each in values)


def score(value: float, window: Sequence[float], *, least: float) -> float:
    """How many standard deviations of the window a value lies above its median.

    The deviation is the larger of the robust one and the plain one, for heavy tails are ordinary noise of some data;
    `least` is the smallest that is believed.
    """
    middle = median(window)
    plain = math.sqrt(sum((each - middle) ** 2 for each in window) / len(window))
    return (value - middle) / max(spread(window, middle), plain, least)


def logs(values: Sequence[float]) -> list[float]:
    """Logarithms of what is positive and finite; the rest is left out."""
    return [math.log(each) for each in values if 0 < each < math.inf]


def finite(values: Sequence[float]) -> list[float]:
    return [each for each in values if math.isfinite(each)]


def noise(values: Sequence[float]) -> float:
    """Standard deviation of the noise, by successive differences: a slow trend does not count."""
    steps = [b - a for a, b in pairwise(values)]
    return GAUSSIAN * median(map(abs, steps)) / math.sqrt(2) if steps else 0.0


def medians(values: Sequence[float], parts: int) -> list[float]:
    """Medians of equal consecutive parts, oldest first."""
    size = len(values) // parts
    return [median(values[part * size : (part + 1) * size]) for part in range(parts)]


def relative_slope(steps: Sequence[float], values: Sequence[float], level: float) -> float:
    """Slope over the level, a step; 0 where the level is 0 and nothing is relative to it."""
    return slope(steps, values) / abs(level) if level else 0.0


def slope(steps: Sequence[float], values: Sequence[float]) -> float:
    """Least squares slope; 0 for fewer than two different steps."""
    if len(steps) < 2:
        return 0.0
    middle, level = sum(steps) / len(steps), sum(values) / len(values)
    squares = sum((step - middle) ** 2 for step in steps)
    if squares == 0:
        return 0.0
    return sum((step - middle) * (value - level) for step, value in zip(steps, values, strict=True)) / squares


# Trends of what is sampled for each block: which blocks grew, since when, and when they will reach a limit.

SAMPLES = 8  # recordings needed for a trend; ours
LEFT = 0.2  # of the way from beginning to end; ours: past the noise of the beginning
ENDS = 3  # recordings whose median stands for the beginning and for the end; ours: one odd batch is outvoted


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The course of one block's number."""

    index: int
    first: float
    last: float
    slope: float
    """A step, since then."""
    pace: float
    """Slope of the logarithm, a step, since then: what grows by itself grows by factors. 0 where it is not positive."""
    since: int


def trends(found: Rows) -> list[Trend]:
    """A trend for each block of which there are enough recordings; those in which it was not measured do not count."""
    if len(found) < SAMPLES:
        return []
    courses = [_measured(found, index) for index in range(len(found.rows[-1]))]
    return [
        _trend(steps, values, index) for index, (steps, values) in enumerate(courses) if len(steps) >= SAMPLES
    ]


def _measured(found: Rows, index: int) -> tuple[list[int], list[float]]:
    kept = [
        (step, row[index]) for step, row in zip(found.steps, found.rows, strict=True) if not row[index] < 0
    ]
    return [step for step, _ in kept], [value for _, value in kept]


def _trend(steps: Sequence[int], values: list[float], index: int) -> Trend:
    first, last = median(values[:ENDS]), median(values[-ENDS:])
    since = _left(steps, values, first, last)
    begin = min(steps.index(since), len(steps) - ENDS)
    later, course = steps[begin:], values[begin:]
    return Trend(
        index=index,
        first=first,
        last=last,
        slope=slope(later, course) if all(map(math.isfinite, course)) else 0.0,
        pace=slope(later, [*map(math.log, course)]) if all(0 < each < math.inf for each in course) else 0.0,
        since=since,
    )


def _left(steps: Sequence[int], values: Sequence[float], first: float, last: float) -> int:
    """The last step at which it had gone less than a fifth of its way; in logarithms where both ends are positive, so
    that what grows by factors did not begin when it was nearly there."""
    ends = (first, last)
    leave = first * (last / first) ** LEFT if min(ends) > 0 else first + LEFT * (last - first)
    low = [step for step, value in zip(steps, values, strict=True) if (value <= leave) == (first <= last)]
    return low[-1] if low else steps[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Several blocks with the same trouble, as one."""

    where: str
    layers: tuple[int, int] | None
    worst: Trend
    since: int


def gathered(history: History, name: str, is_sick: Callable[[Trend], bool]) -> Place | None:
    """The blocks whose trend of this metric is sick, as one place; None if there are none."""
    sick = [each for each in trends(history.spaced(name)) if is_sick(each)]
    if not sick:
        return None
    indices = [each.index for each in sick]
    return Place(
        where=layer_names(history.layout.blocks, indices),
        layers=span(indices),
        worst=max(sick, key=lambda each: each.last),
        since=min(each.since for each in sick),
    )


def steps_to(limit: float, trend: Trend) -> float | None:
    """Steps until a straight line through the trend reaches the limit; None if it moves away from it."""
    left = limit - trend.last
    return left / trend.slope if trend.slope and left / trend.slope > 0 else None
