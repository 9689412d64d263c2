r"""Statistics that one wild value does not move: what alarms measure noise and trends with.

A score is $z = (x - m)/\sigma$ with $m$ the median of a window and $\sigma$ the larger of its root mean square
distance from $m$ and $1.4826 \cdot \mathrm{median}|x_i - m|$, which are the same where the noise is Gaussian. Norms
are scored by their logarithm: they are positive, noisy by factors, and the score is then the same whatever unit they
have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

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
