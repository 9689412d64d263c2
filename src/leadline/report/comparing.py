"""A comparison as a page for the terminal: both verdicts, the signal of each, what was gained and lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import StringIO
from typing import Literal

from rich.console import Console
from rich.text import Text

from leadline.records import DepthBlock, Finding, Measure
from leadline.records.report import ComparedReport, Report, ReportComparison
from leadline.report.charts.lines import Values
from leadline.report.depth import legend, sparkline, stream_blocks
from leadline.report.layout import ACCENT, LABEL, QUIET, TONES, Look, labelled, shorten, wrapped
from leadline.report.verdict import TITLES, by_severity
from leadline.text import clean, count, factor, number, plural

LEAST_WIDTH, MOST_WIDTH = 50, 120
SHOWN = 2  # findings of a kind that a page names; -v shows all
NUMBER = 11
NAME = 24
VERDICT_TONES = {"trains": TONES["trains"], "poor": TONES["warning"], "fails": TONES["error"]}


def render(comparison: ReportComparison, reports: tuple[Report, Report], look: Look) -> str:
    """The comparison as text; with colour, as text with ANSI codes."""
    page = StringIO()
    color: Literal["standard"] | None = "standard" if look.color else None
    console = Console(file=page, width=MOST_WIDTH, color_system=color, force_terminal=look.color)
    for line in lines(comparison, reports, look):
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    return page.getvalue()


def lines(comparison: ReportComparison, reports: tuple[Report, Report], look: Look) -> list[Text]:
    """The page, line by line: at most 40, unless everything is asked for."""
    width = min(max(look.width, LEAST_WIDTH), MOST_WIDTH)
    head = wrapped(headline(comparison), width, most=2)
    if look.detail == "verdict":
        return head
    most = None if look.detail == "everything" else SHOWN
    sections = [
        head,
        [*_side("A", comparison.first, width), *_side("B", comparison.second, width)],
        _signal(reports, width),
        _table(comparison.measures),
        _findings("gained", comparison.gained, width, most),
        _findings("lost", comparison.lost, width, most),
        _kept(comparison, width),
    ]
    page: list[Text] = []
    for section in filter(None, sections):
        page += [Text(), *section] if page else section
    return page


def headline(comparison: ReportComparison) -> Text:
    """Both verdicts, and how many findings came and went."""
    first, second = comparison.first.verdict, comparison.second.verdict
    worse = sum(change.worse for change in comparison.kept)
    told = f"{plural(len(comparison.gained), 'finding')} gained, {count(len(comparison.lost))} lost, "
    told += f"{count(len(comparison.kept))} kept{f' ({worse} worse)' if worse else ''}"
    return Text.assemble(
        (TITLES[first], VERDICT_TONES.get(first, "bold")),
        " → ",
        (TITLES[second], VERDICT_TONES.get(second, "bold")),
        f": {told}",
    )


def _side(letter: str, side: ComparedReport, width: int) -> list[Text]:
    said = f"{clean(side.name)} · {clean(side.model)} · {TITLES[side.verdict]}: {clean(side.reason)}"
    return labelled(letter, said, width, most=2)


def _signal(reports: tuple[Report, Report], width: int) -> list[Text]:
    """Forward and backward, A above B, each with its ends; the first stream of each."""
    drawn: list[Text] = []
    room = width - LABEL - 2 - 2 * NUMBER
    shown: list[float | None] = []
    for label, field in (("forward →", "forward_ms"), ("backward ←", "backward_ms")):
        rows = [[getattr(block, field) for block in _first_stream(each)] for each in reports]
        shown += [value for row in rows for value in row]
        drawn += [
            _row("" if place else label, letter, rows[place], rows[1 - place], room)
            for place, letter in enumerate("AB")
        ]
    marks = "   ".join(f"{sign} {meaning}" for sign, meaning in legend(shown).items())
    head = f"{'':<{LABEL + 2}}{'from input to loss':<{room}}{'first':>{NUMBER}}{'last':>{NUMBER}}"
    return [Text(head, style=QUIET), *drawn, *(labelled("", marks, width) if marks else [])] if shown else []


def _first_stream(report: Report) -> list[DepthBlock]:
    return stream_blocks(report.profile, 0) if report.profile.streams else []


def _row(label: str, letter: str, values: Values, beside: Values, room: int) -> Text:
    """One line, on the scale of both."""
    line = Text(sparkline(values, room - 1, beside), style=ACCENT)
    line.pad_right(room - line.cell_len)
    ends = (number(values[0]), number(values[-1])) if values else ("", "")
    cells = "".join(f"{cell:>{NUMBER}}" for cell in ends)
    return Text.assemble((label.ljust(LABEL), QUIET), (f"{letter} ", QUIET), line, cells)


def _table(measures: Sequence[Measure]) -> list[Text]:
    head = Text(f"{'':<{NAME}}{'A':>{NUMBER}}{'B':>{NUMBER}}{'B / A':>{NUMBER}}", style=QUIET)
    rows = [
        Text.assemble(
            (f"{each.name:<{NAME}}", QUIET),
            f"{amount(each.before):>{NUMBER}}{amount(each.after):>{NUMBER}}{ratio(each):>{NUMBER}}",
        )
        for each in measures
        if each.before != each.after
    ]
    return [head, *rows] if rows else []


def amount(value: float | None) -> str:
    """Whole numbers as counts."""
    whole = value is not None and math.isfinite(value) and value == int(value) and abs(value) >= 1
    return count(int(value)) if whole and value is not None else number(value)


def ratio(measure: Measure) -> str:
    """The second over the first, where that says something."""
    before, after = measure.before, measure.after
    if before is None or after is None or not before or not math.isfinite(before):
        return ""
    return factor(after / before)


def _findings(label: str, findings: Sequence[Finding], width: int, most: int | None) -> list[Text]:
    ordered = by_severity(findings)
    found: list[Text] = []
    for each in ordered[:most]:
        title = Text.assemble(
            (f"{each.severity} ", TONES[each.severity]),
            (clean(f"{each.code} {each.name}"), "bold"),
            f"  {shorten(clean(each.where), 40)}: {clean(each.message)}",
        )
        found += labelled("" if found else label, title, width, most=None if most is None else 2)
    if len(ordered) > len(ordered[:most]):
        found += labelled("", Text(f"and {len(ordered) - SHOWN} more: -v shows all", style=QUIET), width)
    return found


def _kept(comparison: ReportComparison, width: int) -> list[Text]:
    told = [
        f"{clean(change.second.code)} {clean(change.second.name)}{' (worse)' if change.worse else ''}"
        for change in comparison.kept
    ]
    return labelled("kept", ", ".join(told), width, most=2) if told else []
