"""Values side by side, a row each: shares of a whole, or a few numbers on one axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leadline.drawing.scale import fitted
from leadline.drawing.svg import element, picture, words
from leadline.drawing.tones import ACCENT, INK, QUIET, TONES

ROW, BAR = 24.0, 12.0
NAME, AMOUNT = 170.0, 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One value with its name, and the value in words."""

    label: str
    value: float | None
    said: str
    quiet: bool = False


def bars(rows: Sequence[Bar], *, label: str, width: float = 520.0) -> str:
    """A bar a row from zero, to the right if positive. What is not finite has no bar, and is said."""
    found = [each.value for each in rows if each.value is not None and math.isfinite(each.value)]
    low, high = min([0.0, *found]), max([0.0, *found])
    span = (high - low) or 1.0
    room = width - NAME - AMOUNT
    height = ROW * len(rows) + 4
    drawn = []
    for place, row in enumerate(rows):
        middle = place * ROW + BAR / 2 + 7
        value = row.value if row.value is not None and math.isfinite(row.value) else None
        drawn.append(element("text", words(row.label), x=0, y=middle, fill=INK, class_="ll-name"))
        if value is not None:
            left = NAME + room * (min(value, 0.0) - low) / span
            drawn.append(
                element(
                    "rect",
                    x=left,
                    y=place * ROW + 3,
                    width=max(room * abs(value) / span, 1.0),
                    height=BAR,
                    fill=QUIET if row.quiet else ACCENT,
                    class_="ll-quiet-part" if row.quiet else "ll-part",
                )
            )
        drawn.append(
            element(
                "text", words(row.said), x="100%", y=middle, text_anchor="end", fill=INK, class_="ll-amount"
            )
        )
    return picture(*drawn, width=width, height=height, label=label)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A place on a ruler. `main`: the one that the others are there for."""

    label: str
    value: float
    said: str
    main: bool = False


def ruler(marks: Sequence[Mark], *, label: str, width: float = 520.0) -> str:
    """Positive values as marks on one logarithmic axis, each on a line of its own, so that no two names collide."""
    shown = sorted((mark for mark in marks if 0 < mark.value < math.inf), key=lambda mark: mark.value)
    scale = fitted([mark.value for mark in shown], "log")
    left, right = 4.0, width - 4.0
    base = ROW * len(shown) + 10

    def x(place: float) -> float:
        return left + (right - left) * place

    drawn = [element("path", d=f"M{left} {base}H{right}", stroke=QUIET, class_="ll-axis")]
    for at, text in scale.ticks():
        drawn.append(element("path", d=f"M{x(at):.1f} {base:.1f}v4", stroke=QUIET, class_="ll-axis"))
        drawn.append(
            element(
                "text", words(text), x=x(at), y=base + 16, text_anchor="middle", fill=QUIET, class_="ll-tick"
            )
        )
    for place, mark in enumerate(shown):
        drawn.append(_mark(mark, x(scale.place(mark.value) or 0.0), place * ROW + 10, base, width))
    return picture(*drawn, width=width, height=base + 22, label=label)


def _mark(mark: Mark, x: float, y: float, base: float, width: float) -> str:
    tone = TONES["main" if mark.main else "second"]
    right = x < width * 0.6
    kind = "main" if mark.main else "second"
    return element(
        "g",
        element("path", d=f"M{x:.1f} {y:.1f}V{base:.1f}", stroke=tone.color, class_=f"ll-{kind}"),
        element("circle", cx=x, cy=y, r=3.5, fill=tone.color, class_=f"ll-{kind}-dot"),
        element(
            "text",
            words(f"{mark.label} {mark.said}"),
            x=x + (8 if right else -8),
            y=y + 4,
            text_anchor="start" if right else "end",
            fill=INK,
            class_="ll-name",
            **({"font_weight": 600} if mark.main else {}),
        ),
    )
