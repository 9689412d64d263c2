"""How contributions add up to a total: a bar a contribution, each from where the last one ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from leadline.drawing.svg import element, picture, words
from leadline.drawing.tones import ACCENT, INK, QUIET, TONES

ROW, BAR = 24.0, 12.0
NAME, AMOUNT = 118.0, 78.0
"""Room for the name at the left of a bar, and for its number at the right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One contribution; `said` is its number in words, `theory` what it should be, `hint` what a pointer is told."""

    label: str
    amount: float
    said: str
    theory: float | None = None
    hint: str = ""


def waterfall(parts: Sequence[Part], total: Part, *, label: str, width: float = 520.0) -> str:
    """The parts, one below the other, and their sum in the last line. All amounts must be finite."""
    ends = [0.0, *accumulate(part.amount for part in parts)]
    low, high = min(*ends, total.amount, 0.0), max(*ends, total.amount, 0.0)
    span = (high - low) or 1.0
    room = width - NAME - AMOUNT

    def x(amount: float) -> float:
        return NAME + room * (amount - low) / span

    rows = [*zip(parts, ends, strict=False), (total, 0.0)]
    height = ROW * len(rows) + 8
    zero = element(
        "path", d=f"M{x(0):.1f} 2V{height - 4:.1f}", stroke=QUIET, stroke_opacity=0.5, class_="ll-grid"
    )
    drawn = [
        _row(part, (x(start), x(start + part.amount)), place, last=part is total)
        for place, (part, start) in enumerate(rows)
    ]
    ticks = [
        _tick(x(start + part.theory), place)
        for place, (part, start) in enumerate(rows)
        if part.theory is not None
    ]
    return picture(zero, *drawn, *ticks, width=width, height=height, label=label)


def _row(part: Part, ends: tuple[float, float], place: int, *, last: bool) -> str:
    left, right = min(ends), max(ends)
    top = place * ROW + 4
    weight = {"font_weight": 600} if last else {}
    middle = top + BAR / 2 + 4
    return element(
        "g",
        element("title", words(part.hint or f"{part.label}: {part.said}")),
        element("text", words(part.label), x=0, y=middle, fill=INK, class_="ll-name", **weight),
        element(
            "rect",
            x=left,
            y=top,
            width=max(right - left, 1.0),
            height=BAR,
            fill=INK if last else ACCENT,
            fill_opacity=0.75 if last else 1,
            class_="ll-total" if last else "ll-part",
        ),
        element(
            "text",
            words(part.said),
            x="100%",
            y=middle,
            text_anchor="end",
            fill=INK,
            class_="ll-amount",
            **weight,
        ),
    )


def _tick(x: float, place: int) -> str:
    """A dashed line where theory puts the end of the bar."""
    return element(
        "path",
        d=f"M{x:.1f} {place * ROW + 1:.1f}v{BAR + 6:.1f}",
        stroke=TONES["theory"].color,
        stroke_width=2,
        stroke_dasharray="3 2",
        class_="ll-theory",
    )
