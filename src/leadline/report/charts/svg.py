"""SVG elements, colors and axes: every attribute and every word is escaped here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Literal

from leadline.text import clean

Attribute = str | float | int


def element(name: str, *inside: str, **attributes: Attribute) -> str:
    """`<name attributes>inside</name>`; `class_` is class, and `stroke_width` is stroke-width."""
    said = "".join(f' {_spelled(key)}="{escape(clean(_short(value)))}"' for key, value in attributes.items())
    body = "".join(inside)
    return f"<{name}{said}>{body}</{name}>" if body else f"<{name}{said}/>"


def words(text: str) -> str:
    """`text` as what an element says: letters only, whatever it holds."""
    return escape(clean(text), quote=False)


def picture(*inside: str, width: float, height: float, label: str) -> str:
    """An image of its own, as wide as its place allows, with words for those who do not see it."""
    return element(
        "svg",
        element("title", words(label)),
        *inside,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_short(width)} {_short(height)}",
        class_="ll-svg",
        role="img",
        font_family="inherit",
        font_size=11,
    )


def _spelled(key: str) -> str:
    if key == "preserve_aspect_ratio":
        return "preserveAspectRatio"
    return key if key == "viewBox" else key.rstrip("_").replace("_", "-")


def _short(value: Attribute) -> str:
    """A tenth of a pixel is more than anybody sees."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


# The few colours of all pictures. Told apart by lightness and dashes too, so that no eye needs the hue.
#
# Given as attributes, which any style sheet overrides by class: a notebook that strips styles still shows them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Tone:
    """How a line is drawn."""

    color: str
    width: float = 1.5
    dash: str = ""


ACCENT = "#1f6fb5"
ALARM = "#c8490d"
QUIET = "#8a94a0"
INK = "currentColor"

CHART_TONES = {
    "main": Tone(color=ACCENT, width=1.8),
    "theory": Tone(color=QUIET, dash="5 4", width=1.4),
    "second": Tone(color=QUIET, width=1.6),
    "third": Tone(color=ACCENT, dash="2 3"),
    "fourth": Tone(color=INK, width=1.0),
    "fifth": Tone(color=INK, dash="6 3", width=1.0),
    "sixth": Tone(color=QUIET, dash="1 3"),
}
"""By what the line is: the thing itself, what theory says, and up to five more beside it."""


# Axes: where a value lies between two ends, and where ticks with readable labels go.
#
# The browser draws the same axes (`ticks` in report/html/static/charts.js); a test compares the two.

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
