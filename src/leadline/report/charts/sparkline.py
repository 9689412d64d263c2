"""Values as a line of characters: a signal over depth on a logarithmic scale, or a loss over steps on a linear one."""

from __future__ import annotations

import math
from itertools import pairwise

from leadline.report.page import Spark, Values

LEVELS = "▁▂▃▄▅▆▇█"
# Heuristic: a change by less than a factor of ten fills only part of the height; noise must not look like a cliff.
MIN_SPAN = math.log(10)
MARKS = {"!": "NaN", "∞": "infinite", "0": "exactly zero", "−": "negative", "·": "not measured"}
"""How values without a place on a logarithmic axis are drawn, the most alarming first."""

_ALARM = {mark: len(MARKS) - place for place, mark in enumerate(MARKS)}


def sparkline(values: Values, width: int, beside: Values = ()) -> str:
    """One character per value, or per group of neighbors if there are more values than `width`.

    A group is drawn as its most extreme member. The smallest and the largest value and each kind of mark in `values`
    appear for any `width` that has room for one character of each. `beside` holds the values of another line on the
    same scale.
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


def legend(values: Values) -> str:
    """The meaning of each mark that `values` need, in words."""
    needed = {mark(value) for value in values}
    return "   ".join(f"{sign} {meaning}" for sign, meaning in MARKS.items() if sign in needed)


def _level(value: float | None, low: float, high: float) -> str:
    span = max(high - low, MIN_SPAN)
    bottom = (low + high - span) / 2
    height = (math.log(value or 1.0) - bottom) / span
    return LEVELS[min(int(height * len(LEVELS)), len(LEVELS) - 1)]


def _thin(values: Values, width: int, middle: float) -> list[float | None]:
    """At most `width` of the values, in their order."""
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
    """Rank of a value among its neighbors: marks come first, and "not measured" comes last."""
    if value is None:
        return (-1.0, 0.0)
    sign = mark(value)
    return (float(_ALARM[sign]), 0.0) if sign else (0.0, abs(math.log(value) - middle))


def _landmarks(values: Values) -> list[int]:
    """Indices of the first of each kind of mark and of the smallest and the largest number, the most alarming first."""
    firsts: dict[str, int] = {}
    for index, value in enumerate(values):
        firsts.setdefault(mark(value) or "number", index)
    marks = [firsts[sign] for sign in MARKS if sign in firsts]
    numbers = [
        (value, index) for index, value in enumerate(values) if value is not None and mark(value) is None
    ]
    return [*marks, *([min(numbers)[1], max(numbers)[1]] if numbers else [])]


def _rescue(picks: list[int], landmarks: list[int], count: int) -> None:
    """Give each landmark that lost to a neighbor the nearest column without a landmark."""
    for landmark in landmarks:
        free = [column for column, pick in enumerate(picks) if pick not in landmarks]
        if landmark in picks or not free:
            continue
        home = landmark * len(picks) // count
        picks[min(free, key=lambda column: abs(column - home))] = landmark


def loss_curve(losses: Values, beside: Values, width: int) -> str:
    """A training loss as a line of characters; `beside` is the loss of another training on the same scale.

    The scale ends at the higher of the two first losses, so that a spike does not flatten the rest. A step at which
    the loss was not finite shows as a mark.
    """
    steps = max(len(losses), len(beside))
    width = max(min(width, steps), 1)
    low, high = _loss_range(losses, beside)
    edges = [cell * steps // width for cell in range(width + 1)]
    parts = [losses[first:last] for first, last in pairwise(edges)]
    return "".join(_loss_level(part, low, high) for part in parts if part).ljust(width)


def _loss_range(losses: Values, beside: Values) -> tuple[float, float]:
    finite = [value for value in (*losses, *beside) if value is not None and math.isfinite(value)]
    firsts = [row[0] for row in (losses, beside) if row and row[0] is not None and math.isfinite(row[0])]
    return min(finite, default=0.0), max(firsts, default=1.0)


def _loss_level(part: Values, low: float, high: float) -> str:
    broken = [value for value in part if mark(value) in ("!", "∞", "·")]
    if broken:
        return mark(broken[0]) or "!"
    mean = sum(value for value in part if value is not None) / len(part)
    height = (mean - low) / (high - low) if high > low else 0.0
    return LEVELS[min(int(height * len(LEVELS)), len(LEVELS) - 1)]


# Heuristic: so that a network of few blocks does not shrink to a dot.
MAX_STRETCH = 3
# Heuristic: half of a line of 80 columns, which leaves room for the numbers.
MAX_LOSS_CHARACTERS = 40


def draw_spark(spark: Spark, room: int) -> str:
    """A spark in at most `room` characters; the values of a short one are repeated to make it longer."""
    if spark.kind == "linear":
        return loss_curve(spark.values, spark.beside, min(room, MAX_LOSS_CHARACTERS))
    stretch = stretch_of(len(spark.values), room)
    return "".join(char * stretch for char in sparkline(spark.values, room, spark.beside))


def stretch_of(count: int, room: int) -> int:
    """How many characters each of `count` values gets."""
    return min(max(room // max(count, 1), 1), MAX_STRETCH)
