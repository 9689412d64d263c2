"""Fewer points and rows than were measured, so that a page stays quick; what stands out is kept."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import TypeVar

from leadline.alarms.history import ABSENT

Item = TypeVar("Item")


def thin(steps: Sequence[int], values: Sequence[float], most: int) -> tuple[list[int], list[float]]:
    """About `most` points at the most: of each stretch the smallest, the largest and the first that is no number.

    The first and the last point stay.
    """
    if len(steps) <= most:
        return list(steps), list(values)
    size = math.ceil(3 * len(steps) / most)
    kept = {0, len(steps) - 1}
    for start in range(0, len(steps), size):
        kept.update(_outstanding(values, range(start, min(start + size, len(steps)))))
    places = sorted(kept)
    return [steps[place] for place in places], [values[place] for place in places]


def _outstanding(values: Sequence[float], stretch: range) -> set[int]:
    finite = [place for place in stretch if math.isfinite(values[place])]
    odd = next((place for place in stretch if not math.isfinite(values[place])), None)
    found = {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)} if finite else set()
    return found if odd is None else found | {odd}


def spread(items: Sequence[Item], most: int) -> list[Item]:
    """At most `most` of them at even distances, the first and the last included."""
    if len(items) <= most:
        return list(items)
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]


def squeeze(values: Sequence[float], length: int, rows: int) -> array[float]:
    """One value for each of `rows` equal ranges of an axis of `length` places: the largest, or NaN if there is one.

    Places of the axis that `values` does not reach were not measured.
    """
    full = array("f", values[:length])
    full.extend([ABSENT] * (length - len(full)))
    if rows >= length:
        return full
    return array("f", (_largest(full[first:last]) for first, last in ranges(length, rows)))


def ranges(length: int, rows: int) -> list[tuple[int, int]]:
    """First and past-the-last place of each row, if an axis of `length` places is shown in `rows` rows at the most."""
    rows = min(rows, length)
    return [(row * length // rows, (row + 1) * length // rows) for row in range(rows)]


def _largest(values: array[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else max(values)
