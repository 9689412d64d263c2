"""A report in a notebook: verdict, the depth profiles that matter most, and the roots. No scripts."""

from __future__ import annotations

from leadline.drawing.chart import Line
from leadline.drawing.multiples import Picture, card
from leadline.drawing.numbers import number, plural
from leadline.report.depth import block_summary
from leadline.report.html.panel import Panel
from leadline.report.html.panels import panels_of
from leadline.report.layout import joined
from leadline.report.report import Report
from leadline.report.text import clean
from leadline.report.verdict import headline, rooted

SHOWN = ("forward", "backward", "branches", "updates")
ROOTS = 6


def card_of(report: Report) -> str:
    """The report as a small page of HTML for a notebook's cell."""
    profile = report.profile
    facts = joined(
        clean(profile.model),
        plural(profile.parameters, "parameter"),
        block_summary(profile.blocks),
        f"loss {number(profile.loss)}",
    )
    panels = [panel for panel in panels_of(profile) if panel.key in SHOWN]
    return card(clean(headline(report)), [facts], [_picture(panel) for panel in panels], _items(report))


def _picture(panel: Panel) -> Picture:
    lines = [
        Line(values=each.values, label=each.label, tone=each.tone, band=each.band, sparse=each.sparse)
        for each in panel.series
    ]
    note = panel.notes[0] if panel.notes else ""
    return Picture(title=panel.title, lines=lines, note=note, kind=panel.kind)


def _items(report: Report) -> list[str]:
    roots = rooted(report.findings)
    told = [
        clean(f"{root.severity} {root.code} {root.name}: {root.message}")
        + (f"; it leads to {', '.join(each.code for each in below)}" if below else "")
        for root, below in roots[:ROOTS]
    ]
    rest = len(roots) - ROOTS
    return told + ([f"and {plural(rest, 'further finding')}"] if rest > 0 else [])
