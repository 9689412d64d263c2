"""Bars, a row each: values side by side, or contributions that add up. Rows are text with one SVG bar between.

The bar alone stretches with the page; names and numbers keep their size on any screen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from leadline.drawing.svg import element, words
from leadline.drawing.tones import ACCENT, INK, QUIET

WIDE, BAR = 1000.0, 12.0
"""The bar's own units: its width is the whole row's, whatever that is on the screen."""
COLORS = {"part": ACCENT, "quiet-part": QUIET, "total": INK}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One value with its name. `tone`: a key of COLORS; `theory`: where the bar should end, from its start."""

    label: str
    value: float | None
    said: str
    tone: str = "part"
    theory: float | None = None
    hint: str = ""
    """What a pointer that rests on the row is told."""


def bars(rows: Sequence[Bar], *, label: str) -> str:
    """A bar a row, each from zero. What is not finite has no bar, and is said."""
    return _rows(rows, [0.0] * len(rows), label)


def waterfall(parts: Sequence[Bar], total: Bar, *, label: str) -> str:
    """A bar a contribution, each from where the last one ended, and their sum. All values must be finite."""
    starts = [0.0, *accumulate(part.value or 0.0 for part in parts)]
    return _rows([*parts, total], [*starts[: len(parts)], 0.0], label)


def _rows(rows: Sequence[Bar], starts: Sequence[float], label: str) -> str:
    ends = [end for row, start in zip(rows, starts, strict=True) for end in _ends(row, start)]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    span = (high - low) or 1.0

    def x(amount: float) -> float:
        return WIDE * (amount - low) / span

    drawn = [_row(row, start, x(0.0), x) for row, start in zip(rows, starts, strict=True)]
    return element("div", *drawn, class_="ll-rows", role="group", aria_label=label)


def _ends(row: Bar, start: float) -> list[float]:
    return [start + each for each in (row.value, row.theory) if each is not None and math.isfinite(each)]


def _row(row: Bar, start: float, zero: float, x: Callable[[float], float]) -> str:
    inside = [element("path", d=f"M{zero:.1f} 0V{BAR}", stroke=QUIET, class_="ll-axis ll-thin")]
    if row.value is not None and math.isfinite(row.value):
        left, right = sorted((x(start), x(start + row.value)))
        width = max(right - left, 2.0)
        inside.append(
            element(
                "rect", x=left, y=0, width=width, height=BAR, fill=COLORS[row.tone], class_=f"ll-{row.tone}"
            )
        )
    if row.theory is not None and math.isfinite(row.theory):
        d = f"M{x(start + row.theory):.1f} 0V{BAR}"
        inside.append(element("path", d=d, stroke=INK, stroke_dasharray="3 2", class_="ll-expected ll-thin"))
    bar = element(
        "svg",
        *inside,
        viewBox=f"0 0 {WIDE:.0f} {BAR:.0f}",
        preserve_aspect_ratio="none",
        class_="ll-bar",
        aria_hidden="true",
    )
    name = element("span", words(row.label), class_="ll-name")
    amount = element("span", words(row.said), class_="ll-amount")
    hint = {"title": row.hint} if row.hint else {}
    return element("div", name, bar, amount, class_=f"ll-row ll-{row.tone}-row", **hint)
