"""SVG elements, colors and axes: every attribute and every word is escaped here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from leadline.report.page import ScaleKind
from leadline.text import clean

Attribute = str | float | int


def element(name: str, *inside: str, **attributes: Attribute) -> str:
    """`<name attributes>inside</name>`; `class_` is class, and `stroke_width` is stroke-width."""
    pairs = "".join(f' {_spelled(key)}="{escape(clean(_short(value)))}"' for key, value in attributes.items())
    body = "".join(inside)
    return f"<{name}{pairs}>{body}</{name}>" if body else f"<{name}{pairs}/>"


def words(text: str) -> str:
    """`text` as what an element says: nothing in it is markup."""
    return escape(clean(text), quote=False)


def picture(*inside: str, width: float, height: float, label: str) -> str:
    """An image as wide as its place allows, with a label for screen readers."""
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
    """One decimal: nobody sees a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


# The few colors of all pictures. They also differ in lightness and dashes, so that no reader needs the hue.
#
# They are attributes, which a style sheet overrides by class: a notebook that strips styles still shows them.


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
"""By the role of a line: the main one, the prediction of theory, and up to five others."""


# Axes: where a value lies between two ends, and where ticks with readable labels go.
#
# The browser draws the same axes (`ticks` in report/render/static/charts.js); a test compares the two.

Tick = tuple[float, str]

# Heuristic: a change by less than a factor of ten fills only part of the height; noise must not look like a cliff.
MIN_DECADES = 1.0
# Heuristic: share of the span above and below the lines, so that none lies on the frame.
PADDING = 0.06
# Heuristic: more labels would touch each other.
MAX_TICKS = 6
# Derived: beyond this value on a linear axis, the distance between two values overflows.
MAX_LINEAR = 1e300
# Heuristic: decades between two ticks; each choice is at most about twice the one before.
TICK_DECADES = (1, 2, 3, 5, 10, 20, 30, 50, 100)
# Powers of ten that are written out: 0.001 to 1000.
PLAIN_EXPONENTS = range(-3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """An axis from `low` to `high`, both in the units in which it is linear: decades, if it is logarithmic."""

    kind: ScaleKind
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
        ticks = log_ticks(self.low, self.high) if self.kind == "log" else even_ticks(self.low, self.high)
        return [((at - self.low) / (self.high - self.low), label) for at, label in ticks]


def position(value: float | None, kind: ScaleKind) -> float | None:
    """`value` in the units of its axis; None if it is not measured, not finite, or has no logarithm."""
    if value is None or not math.isfinite(value):
        return None
    if kind != "log":
        return min(max(value, -MAX_LINEAR), MAX_LINEAR)
    return math.log10(value) if value > 0 else None


def fitted(values: Iterable[float | None], kind: ScaleKind) -> Scale:
    """The axis on which all of `values` can be seen. A share always goes from 0 to 1."""
    if kind == "share":
        return Scale(kind=kind, low=-PADDING, high=1 + PADDING)
    places = [place for value in values if (place := position(value, kind)) is not None]
    low, high = (min(places), max(places)) if places else (0.0, 0.0)
    least = MIN_DECADES if kind == "log" else max(abs(high), 1e-12) * 1e-3
    spread = max(high - low, least)
    middle, half = (low + high) / 2, spread * (0.5 + PADDING)
    return Scale(kind=kind, low=middle - half, high=middle + half, empty=not places)


def log_ticks(low: float, high: float) -> list[Tick]:
    """Powers of ten between `low` and `high` decades; where there are few, also twice and five times these."""
    span = high - low
    if span >= 2:
        step = next((each for each in TICK_DECADES if each >= span / MAX_TICKS), TICK_DECADES[-1])
        first = math.ceil(low / step) * step
        return [(float(at), power_label(at)) for at in range(first, math.floor(high) + 1, step)]
    decades = range(math.floor(low), math.ceil(high) + 1)
    places = [(n + math.log10(digit), digit, n) for n in decades for digit in (1, 2, 5)]
    return [(at, power_label(n, digit)) for at, digit, n in places if low <= at <= high]


def even_ticks(low: float, high: float) -> list[Tick]:
    """Round numbers at even distances: a power of ten, or twice or five times one, apart."""
    step = round_step((high - low) / MAX_TICKS)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [(at * step, _even_label(at * step)) for at in range(first, last + 1)]


def round_step(least: float) -> float:
    """The smallest round number that is not below `least`."""
    size = 10.0 ** math.floor(math.log10(least))
    return next(size * digit for digit in (1, 2, 5, 10) if size * digit >= least * (1 - 1e-9))


def power_label(exponent: int, digit: int = 1) -> str:
    """`digit` x 10^`exponent`, written out where that is short."""
    if exponent not in PLAIN_EXPONENTS:
        return f"{digit}e{exponent}"
    return f"{digit * 10.0**exponent:.{max(-exponent, 0)}f}"


def _even_label(value: float) -> str:
    return f"{value:.4g}".replace("e+0", "e").replace("e-0", "e-") if abs(value) > 1e-12 else "0"


def thinned(values: Sequence[float | None], most: int) -> list[int]:
    """Indices of at most `most` values, with the smallest and the largest of each group of neighbors.

    A value without a place on the axis is never dropped in favor of one with a place.
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
    """Order within a group, whose two ends are shown: not measured, finite by size, infinite, NaN."""
    if value is None:
        return (0, 0.0)
    if math.isnan(value):
        return (3, 0.0)
    return (1, value) if math.isfinite(value) else (2, value)
