"""A report, or a repair, in a notebook: verdict, the profiles that matter most, what was found. No scripts."""

from __future__ import annotations

from leadline.records import Trial
from leadline.records.repair import RepairReport
from leadline.records.report import Report
from leadline.report.charts.lines import Line, Picture, card
from leadline.report.depth import block_summary
from leadline.report.html.overlay import overlaid
from leadline.report.html.panel import Panel
from leadline.report.html.panels import panels_of
from leadline.report.html.repairs import mended
from leadline.report.layout import joined
from leadline.report.verdict import headline, rooted
from leadline.text import clean, number, plural

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


def repair_card(repair: RepairReport) -> str:
    """Verdict before and after, the loss with and without the fixes, the signal before and after, and each outcome."""
    done = mended(repair)
    before = repair.before
    panels = (
        panels_of(before.profile)
        if repair.after is None
        else overlaid(before.profile, repair.after.profile, ("before", "after"))[1]
    )
    items = [
        clean(f"{each.fix}, {'kept' if each.kept else each.state}: {each.title}; {each.why}")
        for each, _ in done.outcomes
    ]
    pictures = [*_trial(repair.trial), *(_picture(panel) for panel in panels if panel.key in SHOWN[:2])]
    return card(clean(headline(before)), [clean(done.sentence)], pictures, items)


def _trial(trial: Trial | None) -> list[Picture]:
    if trial is None:
        return []
    lines = [Line(values=trial.treated), Line(values=trial.untreated, tone="second")]
    shown = [line for line in lines if line.values]
    return [
        Picture(title="Loss by step", note="grey: without the fixes" if trial.treated else "", lines=shown)
    ]


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
