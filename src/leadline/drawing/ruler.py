"""A few positive values as marks on one logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leadline.drawing.scale import fitted
from leadline.drawing.svg import element, picture, words
from leadline.drawing.tones import INK, QUIET, TONES

ROW, WIDTH, EDGE = 22.0, 430.0, 14.0
LETTER = 7.0  # width of a letter, about: a name that would leave the picture stands left of its mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A place on the ruler. `main`: the one that the others are there for."""

    label: str
    value: float
    said: str
    main: bool = False


def ruler(marks: Sequence[Mark], *, label: str) -> str:
    """Each mark on a line of its own, so that no two names collide."""
    shown = sorted((mark for mark in marks if 0 < mark.value < math.inf), key=lambda mark: mark.value)
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
    return picture(*drawn, width=WIDTH, height=base + 24, label=label)


def _mark(mark: Mark, x: float, y: float, base: float) -> str:
    kind = "main" if mark.main else "second"
    tone = TONES[kind]
    right = x + 8 + LETTER * len(f"{mark.label} {mark.said}") < WIDTH
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
            class_="ll-label",
            **({"font_weight": 600} if mark.main else {}),
        ),
    )
