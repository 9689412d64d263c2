"""Robust statistics and trends for run checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from leadline.checks._history import History, Recordings
from leadline.checks._ranges import layer_names, span

# Derived: standard deviation over median absolute deviation of a Gaussian, 1/Phi^-1(3/4).
GAUSSIAN_MAD_RATIO = 1.4826
# Derived: standard error of a median over that of a mean, for a Gaussian: sqrt(pi/2).
MEDIAN_ERROR_RATIO = 1.2533
# Heuristic: fewer recordings do not make a trend.
MIN_TREND_RECORDINGS = 8
# Heuristic: share of the way from beginning to end that lies past the noise of the beginning.
DEPARTURE_SHARE = 0.2
# Heuristic: recordings whose median stands for each end of a trend, so that one odd batch is outvoted.
END_RECORDINGS = 3


def robust_deviation(values: Sequence[float], center: float | None = None) -> float:
    """Standard deviation, estimated from the median distance to the median."""
    middle = median(values) if center is None else center
    return GAUSSIAN_MAD_RATIO * median(abs(each - middle) for each in values)


def score(value: float, window: Sequence[float], *, min_deviation: float) -> float:
    """How many standard deviations of the window a value lies above its median.

    The deviation is the larger of the robust and the plain one, because heavy tails are ordinary noise of some data,
    and never smaller than `min_deviation`.
    """
    middle = median(window)
    plain = math.sqrt(sum((each - middle) ** 2 for each in window) / len(window))
    return (value - middle) / max(robust_deviation(window, middle), plain, min_deviation)


def logs(values: Sequence[float]) -> list[float]:
    """Logarithms of the positive finite values; the rest is left out."""
    return [math.log(each) for each in values if 0 < each < math.inf]


def finite(values: Sequence[float]) -> list[float]:
    return [each for each in values if math.isfinite(each)]


def noise(values: Sequence[float]) -> float:
    """Standard deviation of the noise, from successive differences: a slow trend does not count."""
    differences = [b - a for a, b in pairwise(values)]
    return GAUSSIAN_MAD_RATIO * median(map(abs, differences)) / math.sqrt(2) if differences else 0.0


def rise_scale(values: Sequence[float]) -> tuple[list[float], float]:
    """Return losses on a scale on which differences are changes, and the size of the first on that scale.

    Positive losses are replaced by their logarithms, on which every change is relative to a level of 1.
    """
    if min(values) > 0:
        return [math.log(each) for each in values], 1.0
    return list(values), abs(values[0])


def medians(values: Sequence[float], parts: int) -> list[float]:
    """Medians of equal consecutive parts, oldest first."""
    size = len(values) // parts
    return [median(values[part * size : (part + 1) * size]) for part in range(parts)]


def relative_slope(steps: Sequence[float], values: Sequence[float], level: float) -> float:
    """Slope per step over the level; 0 where the level is 0."""
    return slope(steps, values) / abs(level) if level else 0.0


def slope(steps: Sequence[float], values: Sequence[float]) -> float:
    """Least-squares slope; 0 for fewer than two different steps."""
    if len(steps) < 2:
        return 0.0
    middle, level = sum(steps) / len(steps), sum(values) / len(values)
    squares = sum((step - middle) ** 2 for step in steps)
    if squares == 0:
        return 0.0
    return sum((step - middle) * (value - level) for step, value in zip(steps, values, strict=True)) / squares


# Trends of block metrics: which blocks changed, since when, and when they will reach a limit.


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How one number of a vector changed over the history."""

    index: int
    first: float
    last: float
    slope: float
    """Change per step since `since`."""
    log_slope: float
    """Change of the logarithm per step since `since`, because self-reinforcing growth is exponential; 0 where a value
    is not positive."""
    since: int


def trends(recordings: Recordings) -> list[Trend]:
    """One trend per block that has enough recordings; those in which it was not measured do not count."""
    if len(recordings) < MIN_TREND_RECORDINGS:
        return []
    series = [_measured(recordings, index) for index in range(len(recordings.rows[-1]))]
    return [
        _trend(steps, values, index)
        for index, (steps, values) in enumerate(series)
        if len(steps) >= MIN_TREND_RECORDINGS
    ]


def _measured(recordings: Recordings, index: int) -> tuple[list[int], list[float]]:
    pairs = zip(recordings.steps, recordings.rows, strict=True)
    measured = [(step, row[index]) for step, row in pairs if not row[index] < 0]
    return [step for step, _ in measured], [value for _, value in measured]


def _trend(steps: Sequence[int], values: list[float], index: int) -> Trend:
    first, last = median(values[:END_RECORDINGS]), median(values[-END_RECORDINGS:])
    since = _departure_step(steps, values, first, last)
    begin = min(steps.index(since), len(steps) - END_RECORDINGS)
    later_steps, later_values = steps[begin:], values[begin:]
    positive = all(0 < each < math.inf for each in later_values)
    return Trend(
        index=index,
        first=first,
        last=last,
        slope=slope(later_steps, later_values) if all(map(math.isfinite, later_values)) else 0.0,
        log_slope=slope(later_steps, [*map(math.log, later_values)]) if positive else 0.0,
        since=since,
    )


def _departure_step(steps: Sequence[int], values: Sequence[float], first: float, last: float) -> int:
    """The last step at which it had gone less than a fifth of its way.

    The way is measured in logarithms where both ends are positive: otherwise exponential growth would seem to begin
    when it is nearly over.
    """
    if min(first, last) > 0:
        departure = first * (last / first) ** DEPARTURE_SHARE
    else:
        departure = first + DEPARTURE_SHARE * (last - first)
    before = [
        step for step, value in zip(steps, values, strict=True) if (value <= departure) == (first <= last)
    ]
    return before[-1] if before else steps[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class AffectedBlocks:
    """All blocks with the same symptom, combined."""

    where: str
    layers: tuple[int, int] | None
    worst: Trend
    since: int


def affected_blocks(history: History, metric: str, is_sick: Callable[[Trend], bool]) -> AffectedBlocks | None:
    """The blocks whose trend of this metric is sick, combined; None if there are none."""
    sick = [each for each in trends(history.spaced(metric)) if is_sick(each)]
    if not sick:
        return None
    indices = [each.index for each in sick]
    return AffectedBlocks(
        where=layer_names(history.layout.blocks, indices),
        layers=span(indices),
        worst=max(sick, key=lambda each: each.last),
        since=min(each.since for each in sick),
    )


def steps_to(limit: float, trend: Trend) -> float | None:
    """Steps until a straight line through the trend reaches the limit; None if it moves away from it."""
    distance = limit - trend.last
    return distance / trend.slope if trend.slope and distance / trend.slope > 0 else None
