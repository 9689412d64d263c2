"""Bars and rulers: contributions that add up, and values on one logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

from leadline.report.charts.svg import ACCENT, CHART_TONES, INK, QUIET, element, fitted, picture, words
from leadline.report.page import Bar, BarChart, Mark, Ruler

# Derived: width and height of a bar in its own units, thousandths; on the screen it is as wide as its row.
WIDE, BAR = 1000.0, 12.0
COLORS = {"part": ACCENT, "quiet-part": QUIET, "total": INK}


def draw_bars(chart: BarChart) -> str:
    """One bar per row. A value that is not finite has no bar, only its words."""
    starts = [0.0] * len(chart.rows)
    if chart.waterfall:
        starts = [0.0, *accumulate(row.value or 0.0 for row in chart.rows[:-1])]
        starts[-1] = 0.0
    return _rows(chart.rows, starts, chart.label)


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
    amount = element("span", words(row.amount), class_="ll-amount")
    hint = {"title": row.hint} if row.hint else {}
    return element("div", name, bar, amount, class_=f"ll-row ll-{row.tone}-row", **hint)


# A few positive values as marks on one logarithmic axis.

# Heuristic: in pixels; a row of 12-pixel text, half a page, and room for half a label.
ROW, WIDTH, EDGE = 22.0, 430.0, 14.0
# Heuristic: mean width of a letter in pixels; a label that would leave the picture stands left of its mark.
LETTER = 7.0


def draw_ruler(ruler: Ruler) -> str:
    """One row per mark, so that no two labels collide."""
    shown = sorted((mark for mark in ruler.marks if 0 < mark.value < math.inf), key=lambda mark: mark.value)
    scale = fitted([mark.value for mark in shown], "log")
    base = ROW * len(shown) + 8

    def x(place: float) -> float:
        return EDGE + (WIDTH - 2 * EDGE) * place

    drawn = [element("path", d=f"M{EDGE} {base}H{WIDTH - EDGE}", stroke=QUIET, class_="ll-axis")]
    for at, text in scale.ticks():
        drawn.append(element("path", d=f"M{x(at):.1f} {base:.1f}v4", stroke=QUIET, class_="ll-axis"))
        drawn.append(
            element(
                "text", words(text), x=x(at), y=base + 17, text_anchor="middle", fill=QUIET, class_="ll-tick"
            )
        )
    for place, mark in enumerate(shown):
        drawn.append(_mark(mark, x(scale.place(mark.value) or 0.0), place * ROW + 10, base))
    return picture(*drawn, width=WIDTH, height=base + 24, label=ruler.label)


def _mark(mark: Mark, x: float, y: float, base: float) -> str:
    kind = "main" if mark.main else "second"
    tone = CHART_TONES[kind]
    right = x + 8 + LETTER * len(f"{mark.label} {mark.amount}") < WIDTH
    return element(
        "g",
        element("path", d=f"M{x:.1f} {y:.1f}V{base:.1f}", stroke=tone.color, class_=f"ll-{kind}"),
        element("circle", cx=x, cy=y, r=3.5, fill=tone.color, class_=f"ll-{kind}-dot"),
        element(
            "text",
            words(f"{mark.label} {mark.amount}"),
            x=x + (8 if right else -8),
            y=y + 4,
            text_anchor="start" if right else "end",
            fill=INK,
            class_="ll-label",
            **({"font_weight": 600} if mark.main else {}),
        ),
    )
