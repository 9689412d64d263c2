"""Sparklines on a logarithmic scale, in which nothing that was measured is lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

LEVELS = "▁▂▃▄▅▆▇█"
LEAST_SPAN = math.log(10)  # less than a factor of ten fills only part of the height: noise is no cliff
MARKS = {"!": "NaN", "∞": "infinite", "0": "exactly zero", "−": "negative", "·": "not measured"}
"""How values without a place on a logarithmic axis are drawn, the most alarming first."""

_ALARM = {mark: len(MARKS) - place for place, mark in enumerate(MARKS)}


def sparkline(values: Sequence[float | None], width: int, beside: Sequence[float | None] = ()) -> str:
    """One character a value, or one a group of neighbours if there are more values than `width`.

    A group is drawn as its most extreme member. The smallest and the largest value and each kind of mark in `values`
    are in the line whatever `width` is, as long as it has room for one character of each. Lines that are to be compared
    are drawn on one scale: `beside` has the values of the others.
    """
    logs = [math.log(value) for value in (*values, *beside) if value is not None and mark(value) is None]
    low, high = (min(logs), max(logs)) if logs else (0.0, 0.0)
    shown = _thin(values, width, middle=(low + high) / 2)
    return "".join(mark(value) or _level(value, low, high) for value in shown)


def mark(value: float | None) -> str | None:
    """The mark of a value that has no logarithm; None if it has one."""
    if value is None:
        return "·"
    if math.isnan(value):
        return "!"
    if math.isinf(value):
        return "∞"
    return None if value > 0 else "0" if value == 0 else "−"


def legend(values: Sequence[float | None]) -> dict[str, str]:
    """The meaning of each mark that `values` need."""
    needed = {mark(value) for value in values}
    return {sign: meaning for sign, meaning in MARKS.items() if sign in needed}


def _level(value: float | None, low: float, high: float) -> str:
    span = max(high - low, LEAST_SPAN)
    bottom = (low + high - span) / 2
    height = (math.log(value or 1.0) - bottom) / span
    return LEVELS[min(int(height * len(LEVELS)), len(LEVELS) - 1)]


def _thin(values: Sequence[float | None], width: int, middle: float) -> list[float | None]:
    """At most `width` of the values, in order."""
    count = len(values)
    if count <= width:
        return list(values)

    def extremity(index: int) -> tuple[float, float]:
        return _extremity(values[index], middle)

    edges = [column * count // width for column in range(width + 1)]
    picks = [max(range(*pair), key=extremity) for pair in pairwise(edges)]
    _rescue(picks, _landmarks(values), count)
    return [values[index] for index in picks]


def _extremity(value: float | None, middle: float) -> tuple[float, float]:
    """Which of several neighbours to draw: a mark before a number, but any number before "not measured"."""
    if value is None:
        return (-1.0, 0.0)
    sign = mark(value)
    return (float(_ALARM[sign]), 0.0) if sign else (0.0, abs(math.log(value) - middle))


def _landmarks(values: Sequence[float | None]) -> list[int]:
    """Where the first of each kind of mark, the smallest and the largest number stand; the most alarming first."""
    firsts: dict[str, int] = {}
    for index, value in enumerate(values):
        firsts.setdefault(mark(value) or "number", index)
    marks = [firsts[sign] for sign in MARKS if sign in firsts]
    numbers = [
        (value, index) for index, value in enumerate(values) if value is not None and mark(value) is None
    ]
    return [*marks, *([min(numbers)[1], max(numbers)[1]] if numbers else [])]


def _rescue(picks: list[int], landmarks: list[int], count: int) -> None:
    """Give each landmark that lost to a neighbour the nearest column that shows no other landmark."""
    for landmark in landmarks:
        free = [column for column, pick in enumerate(picks) if pick not in landmarks]
        if landmark in picks or not free:
            continue
        home = landmark * len(picks) // count
        picks[min(free, key=lambda column: abs(column - home))] = landmark
