"""Figures of experiments: the chart, and what each line is. Colours are attributes: it looks right on any page."""

from __future__ import annotations

from leadline.drawing.chart import Line, line_chart
from leadline.drawing.scale import Kind
from leadline.drawing.svg import element, words
from leadline.drawing.tones import TONES
from leadline.records import Plot

SIZE = (460.0, 170.0)
MEASURED_TONES = ("main", "second", "fourth", "third")
THEORY_TONES = ("theory", "fifth", "sixth")


def figure(plot: Plot) -> str:
    """The figure as HTML with inline SVG."""
    kind: Kind = "log" if plot.log else "linear"
    drawn = lines(plot)
    said = f"{plot.title}, over {plot.across}"
    chart = line_chart(drawn, label=said, kind=kind, size=SIZE, names=plot.names)
    keys = " · ".join([words(said), *map(_key, drawn)])
    return element("figure", element("figcaption", keys, class_="note"), chart, class_="wide")


def lines(plot: Plot) -> list[Line]:
    """The lines of a figure, each in a tone of its own: what is predicted is dashed."""
    tones = {False: iter(MEASURED_TONES * 3), True: iter(THEORY_TONES * 3)}
    return [
        Line(values=each.values, label=each.label, tone=next(tones[each.theory]), sparse=True)
        for each in plot.lines
    ]


def _key(line: Line) -> str:
    tone = TONES[line.tone]
    dash = {"stroke_dasharray": tone.dash} if tone.dash else {}
    stroke = element(
        "path", d="M0 4H22", stroke=tone.color, stroke_width=tone.width, class_=f"ll-{line.tone}", **dash
    )
    sample = element("svg", stroke, viewBox="0 0 22 8", width=22, height=8, aria_hidden="true")
    return element("span", sample, words(f" {line.label}"), class_="key")
