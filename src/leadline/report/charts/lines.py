"""Line charts over depth, with a band for theory and a mark for each value off the axis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from leadline.report.charts.svg import (
    ALARM,
    CHART_TONES,
    INK,
    QUIET,
    Scale,
    element,
    fitted,
    picture,
    thinned,
    words,
)
from leadline.report.page import Chart, Limit, ScaleKind, Series, Stretch

# Heuristic: width and height of a chart in pixels, as wide as half a page.
DEFAULT_SIZE = (520.0, 190.0)
# Heuristic: margins of the frame in pixels that hold the labels of the axes.
LEFT, RIGHT, TOP, BOTTOM = 50.0, 6.0, 10.0, 20.0
# Heuristic: half-width of a band in e-folds; beyond it the band leaves every frame.
MAX_BAND = 300.0
# Heuristic: height in pixels of the strips above and below the lines in which the marks stand.
RAIL = 9.0
# Heuristic: height in pixels of one row of stretches: a bracket with its label beside it.
STRETCH_ROW = 13.0
# Heuristic: pixels of a character of a label, on average.
CHARACTER = 6.0
# Heuristic: about one point per two pixels.
MAX_POINTS = 240
# Heuristic: up to this many places all get a label.
MAX_LABELS = 6
# Heuristic: a line of at most this many values also shows its points.
MAX_DOTS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The area that lines are drawn in."""

    width: float
    height: float
    count: int
    scale: Scale
    names: Sequence[str] = ()
    """The label below each place; its number if there are none."""
    top: float = TOP
    """Where the area begins, below the rows of stretches."""

    def x(self, place: int) -> float:
        room = self.width - LEFT - RIGHT
        return LEFT + (room * place / (self.count - 1) if self.count > 1 else room / 2)

    def y(self, value: float | None) -> float | None:
        at = self.scale.place(value)
        return None if at is None else self.height_of(at)

    def height_of(self, share: float) -> float:
        """The y coordinate at a share of the axis, 0 at its low end."""
        room = self.height - self.top - BOTTOM - 2 * RAIL
        return self.top + RAIL + room * (1 - share)


def line_chart(
    lines: Sequence[Series],
    *,
    label: str,
    kind: ScaleKind = "log",
    size: tuple[float, float] = DEFAULT_SIZE,
    names: Sequence[str] = (),
) -> str:
    """The lines over one axis, as SVG. `names`: the label below each place; a place without one has its number."""
    return draw_chart(Chart(title=label, series=tuple(lines), kind=kind, names=tuple(names)), size)


def draw_chart(chart: Chart, size: tuple[float, float] = DEFAULT_SIZE) -> str:
    """A chart of the page model, as SVG."""
    width, height = size
    shown = [value for line in chart.series for value in line.values]
    shown += [value for limit in chart.limits for value in limit.values]
    frame = Frame(
        width=width,
        height=height,
        count=max((len(line.values) for line in chart.series), default=0),
        scale=fitted(shown, chart.kind),
        names=chart.names,
        top=TOP + STRETCH_ROW * len(chart.stretches),
    )
    drawn = [part for line in chart.series for part in _line(line, frame)]
    drawn += [part for limit in chart.limits for part in _limit(limit, frame)]
    drawn += [part for row, each in enumerate(chart.stretches) for part in _stretch(each, row, frame)]
    label = f"{chart.title}: {chart.unit}" if chart.unit else chart.title
    return picture(*_axes(frame), *drawn, width=width, height=height, label=label)


def marked(value: float | None, kind: ScaleKind) -> str | None:
    """The kind of mark for `value`; None if it lies on the axis or was not measured."""
    if value is None:
        return None
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "infinite"
    return "zero" if kind == "log" and value <= 0 else None


def _axes(frame: Frame) -> Iterator[str]:
    right = frame.width - RIGHT
    for place, label in frame.scale.ticks():
        y = frame.height_of(place)
        yield element(
            "path", d=_move([(LEFT, y), (right, y)]), stroke=QUIET, stroke_opacity=0.25, class_="ll-grid"
        )
        yield element(
            "text", words(label), x=LEFT - 6, y=y + 3.5, text_anchor="end", fill=QUIET, class_="ll-tick"
        )
    for place in _labelled(frame.count):
        anchor = "end" if place and place == frame.count - 1 else "middle"
        yield element(
            "text",
            words(frame.names[place] if place < len(frame.names) else str(place)),
            x=frame.x(place),
            y=frame.height - 5,
            text_anchor=anchor,
            fill=QUIET,
            class_="ll-tick",
        )


def _labelled(count: int) -> list[int]:
    """Places that get a label: all if they are few, otherwise both ends and the middle."""
    return list(range(count)) if count <= MAX_LABELS else [0, (count - 1) // 2, count - 1]


def _line(line: Series, frame: Frame) -> Iterator[str]:
    tone = CHART_TONES[line.tone]
    if line.band is not None:
        yield element("path", d=_band(line, frame), fill=QUIET, fill_opacity=0.18, class_="ll-band")
    kept = thinned(line.values, MAX_POINTS)
    points = [
        (frame.x(place), frame.y(line.values[place]))
        for place in kept
        if not (line.sparse and line.values[place] is None)
    ]
    dash = {"stroke_dasharray": tone.dash} if tone.dash else {}
    yield element(
        "path",
        d=_runs(points),
        fill="none",
        stroke=tone.color,
        stroke_width=tone.width,
        stroke_linejoin="round",
        class_=f"ll-{line.tone}",
        **dash,
    )
    if len(points) <= MAX_DOTS and not tone.dash:
        dots = [(x, y) for x, y in points if y is not None]
        yield from (
            element("circle", cx=x, cy=y, r=1.8, fill=tone.color, class_=f"ll-{line.tone}-dot")
            for x, y in dots
        )
    yield from _marks(line, kept, frame)


def _marks(line: Series, kept: Sequence[int], frame: Frame) -> Iterator[str]:
    """A cross for NaN and a triangle for infinity above the lines, a ring for zero below them."""
    top, bottom = frame.top + RAIL / 2, frame.height - BOTTOM - RAIL / 2
    for place in kept:
        x = frame.x(place)
        match marked(line.values[place], frame.scale.kind):
            case "nan":
                d = f"M{x - 2.5:.1f} {top - 2.5:.1f}l5 5m0-5l-5 5"
                yield element("path", d=d, stroke=ALARM, fill="none", stroke_width=1.4, class_="ll-nan")
            case "infinite":
                d = f"M{x - 3:.1f} {top + 2.5:.1f}h6l-3-5z"
                yield element("path", d=d, fill=ALARM, class_="ll-infinite")
            case "zero":
                yield element("circle", cx=x, cy=bottom, r=2.2, fill="none", stroke=INK, class_="ll-zero")


def _limit(limit: Limit, frame: Frame) -> Iterator[str]:
    """A dashed line at the level, with its label above the left end."""
    points = [(frame.x(place), frame.y(limit.values[place])) for place in thinned(limit.values, MAX_POINTS)]
    known = [(x, y) for x, y in points if y is not None]
    if not known:
        return
    yield element(
        "path",
        d=_runs(points),
        fill="none",
        stroke=ALARM,
        stroke_width=1.2,
        stroke_dasharray="3 3",
        class_="ll-limit",
    )
    x, y = known[0]
    yield element("text", words(limit.label), x=x + 3, y=y - 4, fill=ALARM, class_="ll-tick ll-limit-label")


def _stretch(stretch: Stretch, row: int, frame: Frame) -> Iterator[str]:
    """A bracket over the places with its label beside it; a single place gets a line down to the axis."""
    y = TOP + STRETCH_ROW * row
    left, right = frame.x(stretch.first), frame.x(stretch.last)
    bracket = f"M{left:.1f} {y + 4:.1f}v-4H{right:.1f}v4"
    if stretch.first == stretch.last:
        bracket = f"M{left:.1f} {y:.1f}V{frame.height - BOTTOM:.1f}"
    yield element("path", d=bracket, fill="none", stroke=ALARM, stroke_opacity=0.7, class_="ll-stretch")
    room = CHARACTER * len(stretch.label) + 6
    at = left + 4 if left + room < frame.width else left - room
    yield element("text", words(stretch.label), x=at, y=y + 11, fill=ALARM, class_="ll-tick ll-limit-label")


def _band(line: Series, frame: Frame) -> str:
    """One closed outline per run of neighbors that have both a value and a band."""
    runs: list[list[int]] = [[]]
    for place in thinned(line.values, MAX_POINTS):
        band = line.band[place] if line.band is not None else None
        if frame.y(line.values[place]) is None or band is None or not math.isfinite(band):
            runs.append([])
        else:
            runs[-1].append(place)
    return "".join(_outline(line, run, frame) for run in runs if len(run) > 1)


def _outline(line: Series, run: Sequence[int], frame: Frame) -> str:
    """The upper edge, and back along the lower one; cut off where the frame ends."""

    def edge(place: int, sign: int) -> tuple[float, float]:
        value, band = line.values[place], line.band[place] if line.band is not None else None
        y = frame.y((value or 0.0) * math.exp(sign * min(max(band or 0.0, 0.0), MAX_BAND)))
        lowest, highest = frame.height - BOTTOM, frame.top
        return frame.x(place), min(max(y if y is not None else lowest, highest), lowest)

    upper = [edge(place, +1) for place in run]
    lower = [edge(place, -1) for place in reversed(run)]
    return f"{_move(upper + lower)}z"


def _runs(points: Sequence[tuple[float, float | None]]) -> str:
    """Lines through neighbors, broken where there is no value."""
    drawn: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is None:
            drawn.append([])
        else:
            drawn[-1].append((x, y))
    return "".join(_move(run if len(run) > 1 else [*run, run[0]]) for run in drawn if run)


def _move(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
