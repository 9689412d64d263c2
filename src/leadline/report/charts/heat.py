"""A map of shares over two ordered axes, with lines drawn over it. Cells differ in lightness alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from leadline.report.charts.svg import ACCENT, CHART_TONES, INK, QUIET, element, picture, words

# Heuristic: margins in pixels that hold the labels of the axes.
LEFT, RIGHT, TOP, BOTTOM = 58.0, 8.0, 8.0, 42.0
# Heuristic: labels that fit side by side, and one above the other, without touching.
MAX_LABELS_ACROSS, MAX_LABELS_UP = 9, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The places along one side, in order, with the number that each stands for."""

    title: str
    values: Sequence[float]
    log: bool = False

    def place(self, value: float) -> float:
        """Where `value` lies in units of cells, 0 at the middle of the first; between two places, in proportion."""
        at = [math.log(each) if self.log else each for each in self.values]
        wanted = math.log(value) if self.log else value
        if len(at) == 1:
            return 0.0
        index = min(max(sum(each <= wanted for each in at) - 1, 0), len(at) - 2)
        return index + (wanted - at[index]) / (at[index + 1] - at[index])

    def labeled(self, most: int) -> list[int]:
        return list(range(0, len(self.values), math.ceil(len(self.values) / most)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A line over the map: one height per place across; None above the map. `tone`: a key of CHART_TONES."""

    values: Sequence[float | None]
    tone: str = "fourth"


def heat_map(
    shares: Sequence[Sequence[float]],
    across: Axis,
    up: Axis,
    *,
    label: str,
    curves: Sequence[Curve] = (),
    size: tuple[float, float] = (640.0, 380.0),
) -> str:
    """`shares[row][column]` from 0 to 1, rows along `up` from below. Each cell has its value as a tooltip."""
    frame = _Frame(across=across, up=up, width=size[0], height=size[1])
    drawn = [*_cells(shares, frame), *_labels(frame)]
    drawn += [part for curve in curves for part in _curve(curve, frame)]
    return picture(*drawn, width=size[0], height=size[1], label=label)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    across: Axis
    up: Axis
    width: float
    height: float

    def x(self, place: float) -> float:
        return LEFT + (self.width - LEFT - RIGHT) * (place + 0.5) / len(self.across.values)

    def y(self, place: float) -> float:
        return TOP + (self.height - TOP - BOTTOM) * (1 - (place + 0.5) / len(self.up.values))


def _cells(shares: Sequence[Sequence[float]], frame: _Frame) -> Iterator[str]:
    width = (frame.width - LEFT - RIGHT) / len(frame.across.values)
    height = (frame.height - TOP - BOTTOM) / len(frame.up.values)
    for row, line in enumerate(shares):
        for column, share in enumerate(line):
            where = f"{frame.across.title} {frame.across.values[column]:.3g}, {frame.up.title} {frame.up.values[row]:g}"
            yield element(
                "rect",
                element("title", words(f"{where}: {share:.0%}")),
                x=frame.x(column) - width / 2,
                y=frame.y(row) - height / 2,
                width=width,
                height=height,
                fill=ACCENT,
                fill_opacity=f"{min(max(share, 0.0), 1.0):.2f}",
                stroke=QUIET,
                stroke_opacity="0.25",
                class_="ll-heat",
            )


def _labels(frame: _Frame) -> Iterator[str]:
    low = frame.height - BOTTOM + 15
    for place in frame.across.labeled(MAX_LABELS_ACROSS):
        yield _text(f"{frame.across.values[place]:.3g}", frame.x(place), low, "middle")
    for place in frame.up.labeled(MAX_LABELS_UP):
        yield _text(f"{frame.up.values[place]:.3g}", LEFT - 6, frame.y(place) + 3.5, "end")
    yield _text(frame.across.title, (LEFT + frame.width - RIGHT) / 2, frame.height - 6, "middle")
    yield _text(frame.up.title, LEFT - 6, low, "end")


def _text(said: str, x: float, y: float, anchor: str) -> str:
    return element("text", words(said), x=x, y=y, text_anchor=anchor, fill=QUIET, class_="ll-tick")


def _curve(curve: Curve, frame: _Frame) -> Iterator[str]:
    """The parts of the line inside the frame."""
    top, bottom = len(frame.up.values) - 0.5, -0.5
    points: list[tuple[float, float] | None] = []
    for column, value in enumerate(curve.values):
        at = math.inf if value is None else frame.up.place(value) if value > 0 else -math.inf
        points.append((frame.x(column), frame.y(at)) if bottom <= at <= top else None)
    tone = CHART_TONES[curve.tone]
    dash = {"stroke_dasharray": tone.dash} if tone.dash else {}
    runs = "".join(
        f"{'L' if at and points[at - 1] else 'M'}{point[0]:.1f} {point[1]:.1f}"
        for at, point in enumerate(points)
        if point is not None
    )
    yield element(
        "path", d=runs or "M0 0", fill="none", stroke=INK, stroke_width=2.0, class_=f"ll-{curve.tone}", **dash
    )
