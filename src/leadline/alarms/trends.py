"""Trends of what is sampled for each block: which blocks grew, since when, and when they will reach a limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from leadline.alarms.history import History, Rows
from leadline.alarms.places import named, span
from leadline.alarms.robust import slope

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
        where=named(history.layout.blocks, indices),
        layers=span(indices),
        worst=max(sick, key=lambda each: each.last),
        since=min(each.since for each in sick),
    )


def steps_to(limit: float, trend: Trend) -> float | None:
    """Steps until a straight line through the trend reaches the limit; None if it moves away from it."""
    left = limit - trend.last
    return left / trend.slope if trend.slope and left / trend.slope > 0 else None
