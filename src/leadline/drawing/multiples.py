"""What a notebook shows: a heading, a few facts, and small charts in a grid. CSS and inline SVG, no script.

A notebook's own style decides fonts and text colour, light or dark; one that strips style sheets (a code host's
preview) still shows every line, since colours are attributes too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leadline.drawing.chart import Line, line_chart
from leadline.drawing.scale import Kind
from leadline.drawing.svg import element, words

SIZE = (320.0, 130.0)
STYLE = """
.ll-card{font:14px/1.45 system-ui,sans-serif;max-width:60rem;overflow-wrap:anywhere}
.ll-card h4{font-size:1.1em;margin:.2em 0}
.ll-card p{margin:.2em 0}
.ll-card .ll-facts{opacity:.75}
.ll-grid-of{display:grid;grid-template-columns:repeat(auto-fill,minmax(15rem,1fr));gap:.75rem 1.25rem;margin:.6rem 0}
.ll-grid-of figure{margin:0}
.ll-grid-of figcaption{font-size:.86em}
.ll-card svg{width:100%;height:auto;display:block}
.ll-card ul{margin:.2em 0;padding-left:1.2em}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One small chart: its lines, and the words above it."""

    title: str
    lines: Sequence[Line]
    note: str = ""
    kind: Kind = "log"
    names: Sequence[str] = ()
    """What stands below each place of the axis; none: its number."""


def card(title: str, facts: Sequence[str], pictures: Sequence[Picture], items: Sequence[str] = ()) -> str:
    """A heading, facts below it, the charts, and a list. All words are taken as words."""
    inside = [element("style", STYLE), element("h4", words(title))]
    inside += [element("p", words(fact), class_="ll-facts") for fact in facts if fact]
    if pictures:
        inside.append(element("div", *map(_figure, pictures), class_="ll-grid-of"))
    if items:
        inside.append(element("ul", *(element("li", words(item)) for item in items)))
    return element("div", *inside, class_="ll-card")


def _figure(picture: Picture) -> str:
    said = f"{picture.title} · {picture.note}" if picture.note else picture.title
    drawn = line_chart(picture.lines, label=said, kind=picture.kind, size=SIZE, names=picture.names)
    return element("figure", element("figcaption", words(said)), drawn)
