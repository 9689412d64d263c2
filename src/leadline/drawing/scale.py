"""Axes: where a value lies between two ends, and where ticks with readable labels go.

The browser draws the same axes (`ticks` in report/html/static/charts.js); a test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Kind = Literal["log", "linear", "share"]
Tick = tuple[float, str]

LEAST_DECADES = 1.0  # less than a factor of ten fills only part of the height: noise is no cliff
PADDING = 0.06  # of the span, above and below, so that no line lies on the frame
MOST_TICKS = 6
FARTHEST = 1e300  # on a linear axis: beyond, the distance between two values is no number any more
STEPS = (1, 2, 3, 5, 10, 20, 30, 50, 100)  # decades between two ticks
PLAIN = range(-3, 4)  # powers of ten that are written out: 0.001 to 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """An axis from `low` to `high`, both in the units in which it is linear: decades, if it is logarithmic."""

    kind: Kind
    low: float
    high: float
    empty: bool = False
    """Nothing lies on it, so it has no ticks."""

    def place(self, value: float | None) -> float | None:
        """Where `value` lies, 0 at the low end and 1 at the high one; None if it has no place on this axis."""
        at = position(value, self.kind)
        return None if at is None else (at - self.low) / (self.high - self.low)

    def ticks(self) -> list[Tick]:
        """Places from 0 to 1, each with its label."""
        if self.empty:
            return []
        found = log_ticks(self.low, self.high) if self.kind == "log" else even_ticks(self.low, self.high)
        return [((at - self.low) / (self.high - self.low), label) for at, label in found]


def position(value: float | None, kind: Kind) -> float | None:
    """`value` in the units of its axis; None if it is not measured, not finite, or has no logarithm."""
    if value is None or not math.isfinite(value):
        return None
    if kind != "log":
        return min(max(value, -FARTHEST), FARTHEST)
    return math.log10(value) if value > 0 else None


def fitted(values: Iterable[float | None], kind: Kind) -> Scale:
    """The axis on which all of `values` can be seen. A share goes from 0 to 1, whatever is on it."""
    if kind == "share":
        return Scale(kind=kind, low=-PADDING, high=1 + PADDING)
    found = [at for value in values if (at := position(value, kind)) is not None]
    low, high = (min(found), max(found)) if found else (0.0, 0.0)
    least = LEAST_DECADES if kind == "log" else max(abs(high), 1e-12) * 1e-3
    spread = max(high - low, least)
    middle, half = (low + high) / 2, spread * (0.5 + PADDING)
    return Scale(kind=kind, low=middle - half, high=middle + half, empty=not found)


def log_ticks(low: float, high: float) -> list[Tick]:
    """Powers of ten between `low` and `high` decades; where there are few, also twice and five times these."""
    span = high - low
    if span >= 2:
        step = next((each for each in STEPS if each >= span / MOST_TICKS), STEPS[-1])
        first = math.ceil(low / step) * step
        return [(float(at), power_label(at)) for at in range(first, math.floor(high) + 1, step)]
    decades = range(math.floor(low), math.ceil(high) + 1)
    places = [(n + math.log10(digit), digit, n) for n in decades for digit in (1, 2, 5)]
    return [(at, power_label(n, digit)) for at, digit, n in places if low <= at <= high]


def even_ticks(low: float, high: float) -> list[Tick]:
    """Round numbers at even distances: a power of ten, or twice or five times one, apart."""
    step = round_step((high - low) / MOST_TICKS)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [(at * step, _even_label(at * step)) for at in range(first, last + 1)]


def round_step(least: float) -> float:
    """The smallest round number that is not below `least`."""
    size = 10.0 ** math.floor(math.log10(least))
    return next(size * digit for digit in (1, 2, 5, 10) if size * digit >= least * (1 - 1e-9))


def power_label(exponent: int, digit: int = 1) -> str:
    """`digit` x 10^`exponent`, written out where that is short."""
    if exponent not in PLAIN:
        return f"{digit}e{exponent}"
    return f"{digit * 10.0**exponent:.{max(-exponent, 0)}f}"


def _even_label(value: float) -> str:
    return f"{value:.4g}".replace("e+0", "e").replace("e-0", "e-") if abs(value) > 1e-12 else "0"


def thinned(values: Sequence[float | None], most: int) -> list[int]:
    """Places of at most `most` of the values, the smallest and the largest of each group of neighbours among them.

    A value that has no place on the axis is never dropped in favour of one that has.
    """
    count = len(values)
    if count <= most:
        return list(range(count))
    groups = max(most // 2, 1)
    edges = [at * count // groups for at in range(groups + 1)]
    kept: set[int] = set()
    for start, stop in pairwise(edges):
        ranked = sorted(range(start, stop), key=lambda place: _rank(values[place]))
        kept |= {ranked[0], ranked[-1]}
    return sorted(kept)


def _rank(value: float | None) -> tuple[int, float]:
    """Not measured first, then numbers by size, then what is no number: the ends of a group are what is kept."""
    if value is None:
        return (0, 0.0)
    if math.isnan(value):
        return (3, 0.0)
    return (1, value) if math.isfinite(value) else (2, value)
