"""A page as a card for a notebook cell: title, facts, small charts and findings. CSS and inline SVG, no script.

The notebook's own style decides fonts and text color, light or dark. Colors are attributes, so that a host that strips
style sheets still shows every line.
"""

from __future__ import annotations

from collections.abc import Iterator

from leadline.report.charts.lines import draw_chart
from leadline.report.charts.svg import element, words
from leadline.report.page import (
    Chart,
    Charts,
    Element,
    FindingItem,
    Findings,
    Outcomes,
    Page,
    Profiles,
    Steps,
)
from leadline.text import joined, layer_label, plural

# Heuristic: size of a chart in pixels; three fit side by side in a cell.
SIZE = (320.0, 130.0)
# Heuristic: findings that fit in a cell without scrolling.
FINDINGS_SHOWN = 6
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


def render(page: Page) -> str:
    """The headline, the facts in one line, the prominent charts, and what was found or tried."""
    body = [each for section in page.sections for each in section.body]
    charts = [each for part in body for each in _charts(part) if each.prominent and not each.is_empty]
    items = [each for part in body for each in _items(part)]
    facts = joined(*(each.words for each in page.facts.rows))
    inside = [element("style", STYLE), element("h4", words(page.headline))]
    inside += [element("p", words(each), class_="ll-facts") for each in (page.asked, facts) if each]
    if charts:
        inside.append(element("div", *map(_figure, charts), class_="ll-grid-of"))
    if items:
        inside.append(element("ul", *(element("li", words(item)) for item in items)))
    return element("div", *inside, class_="ll-card")


def _charts(part: Element) -> tuple[Chart, ...]:
    if isinstance(part, Profiles):
        return part.charts
    return part.items if isinstance(part, Charts) else ()


def _figure(chart: Chart) -> str:
    caption = joined(chart.title, chart.notes[0] if chart.notes else chart.unit)
    return element("figure", element("figcaption", words(caption)), draw_chart(chart, SIZE))


def _items(part: Element) -> Iterator[str]:
    """One line per fix that was tried, root finding, or thing to do."""
    if isinstance(part, Outcomes):
        for each in part.items:
            yield f"{each.fix}, {'kept' if each.kept else each.state}: {each.title}; {each.why}"
    elif isinstance(part, Findings):
        yield from map(_finding, part.items[:FINDINGS_SHOWN])
        if part.notes:
            codes = ", ".join(dict.fromkeys(f"{each.code} {each.name}" for each in part.notes))
            yield f"{plural(len(part.notes), 'note')}: {codes}"
        rest = len(part.items) - FINDINGS_SHOWN
        if rest > 0:
            yield f"and {plural(rest, 'further finding')}"
    elif isinstance(part, Steps):
        yield from (each.title for each in part.items)


def _finding(item: FindingItem) -> str:
    codes = ", ".join(each.code for each in item.consequences)
    place = f" ({item.place})" if item.place else ""
    leads = f"; it leads to {codes}" if codes else ""
    return f"{item.severity} {item.code} {item.name}, {layer_label(item.where)}{place}: {item.message}{leads}"
