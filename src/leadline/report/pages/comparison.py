"""The page of a comparison: both verdicts, findings gained and lost, the numbers, and the signal of both."""

from __future__ import annotations

import math
from collections.abc import Sequence

from leadline.records import DepthBlock, Finding, Measure
from leadline.records.report import ComparedReport, Report, ReportComparison
from leadline.report.charts.sparkline import legend
from leadline.report.depth import stream_blocks
from leadline.report.page import (
    Chart,
    Charts,
    Column,
    Element,
    Fact,
    Findings,
    Page,
    Paragraph,
    Section,
    Series,
    Spark,
    Table,
    Title,
    facts,
)
from leadline.report.pages.profiles import overlay
from leadline.report.pages.report import finding_item
from leadline.report.verdict import TITLES, by_severity
from leadline.text import count, factor, joined, number, plural

Losses = tuple[Sequence[int], Sequence[float]]
"""The steps of a run and the loss at each of them."""


def comparison_page(
    comparison: ReportComparison, reports: tuple[Report, Report], losses: tuple[Losses, Losses] | None = None
) -> Page:
    """`losses`: of both, if both are runs."""
    profiles = overlay(reports[0].profile, reports[1].profile, ("A", "B"))
    first, second = comparison.first, comparison.second
    return Page(
        subject=f"{first.name} against {second.name}",
        titles=tuple(Title(words=TITLES[each.verdict], tone=each.verdict) for each in (first, second)),
        sentence=_sentence(comparison),
        facts=facts(_side("A", first), _side("B", second), wide=True),
        sections=(
            _signal_section(reports),
            _measures_section(comparison.measures),
            _findings_section("gained", comparison.gained),
            _findings_section("lost", comparison.lost),
            _kept_section(comparison),
            Section(
                key="loss",
                title="Loss",
                body=() if losses is None else (Charts(items=(_loss_chart(losses),)),),
            ),
            Section(
                key="depth",
                title="Depth profiles",
                lead="Both over one axis, place by place from the input.",
                body=(profiles,) if profiles.charts else (),
            ),
        ),
        version=comparison.leadline,
        record=comparison,
    )


def _sentence(comparison: ReportComparison) -> str:
    worse = sum(change.worse for change in comparison.kept)
    return (
        f"{plural(len(comparison.gained), 'finding')} gained, {count(len(comparison.lost))} lost, "
        f"{count(len(comparison.kept))} kept{f' ({worse} worse)' if worse else ''}"
    )


def _side(letter: str, side: ComparedReport) -> Fact:
    words = joined(side.name, side.model, f"{TITLES[side.verdict]}: {side.reason}")
    return Fact(label=letter, value=words, line=letter)


def _signal_section(reports: tuple[Report, Report]) -> Section:
    """Forward and backward signal of the first stream, A above B on one scale; a browser draws it as charts."""
    fields = (("forward →", "forward_ms"), ("backward ←", "backward_ms"))
    blocks = [_first_stream(each) for each in reports]
    rows: list[tuple[str | Spark, ...]] = []
    shown: list[float | None] = []
    for label, field in fields:
        values = [[getattr(block, field) for block in each] for each in blocks]
        shown += [*values[0], *values[1]]
        for place, letter in enumerate("AB"):
            own = values[place]
            ends = (number(own[0]), number(own[-1])) if own else ("", "")
            spark = Spark(values=own, beside=values[1 - place])
            rows.append(("" if place else label, letter, spark, *ends))
    columns = (
        Column(kind="label"),
        Column(),
        Column(title="mean square", kind="spark", ends=("input", "loss")),
        Column(title="first", kind="number"),
        Column(title="last", kind="number"),
    )
    marks = legend(shown)
    words: tuple[Element, ...] = (Paragraph(words=marks),) if marks else ()
    brief = (Table(columns=columns, rows=tuple(rows)), *words) if shown else ()
    return Section(key="signal", title="Signal", brief=brief)


def _first_stream(report: Report) -> list[DepthBlock]:
    return stream_blocks(report.profile, 0) if report.profile.streams else []


def _measures_section(measures: Sequence[Measure]) -> Section:
    columns = (Column(), *(Column(title=title, kind="number") for title in ("A", "B", "B / A")))

    def table(shown: Sequence[Measure]) -> tuple[Element, ...]:
        rows = tuple((each.name, _amount(each.before), _amount(each.after), _ratio(each)) for each in shown)
        return (Table(columns=columns, rows=rows),) if rows else ()

    changed = [each for each in measures if each.before != each.after]
    return Section(key="numbers", title="Numbers", brief=table(changed), body=table(measures))


def _amount(value: float | None) -> str:
    """Whole numbers as counts, all others with three digits."""
    if value is not None and math.isfinite(value) and value == int(value) and abs(value) >= 1:
        return count(int(value))
    return number(value)


def _ratio(measure: Measure) -> str:
    """The second over the first; "" where that has no meaning."""
    before, after = measure.before, measure.after
    if before is None or after is None or not before or not math.isfinite(before):
        return ""
    return factor(after / before)


def _findings_section(name: str, findings: Sequence[Finding]) -> Section:
    items = tuple(finding_item(None, each) for each in by_severity(findings))
    element = Findings(items=items, label=name)
    return Section(key=name, title=f"Findings {name}", brief=(element,) if items else (), body=(element,))


def _kept_section(comparison: ReportComparison) -> Section:
    names = [
        f"{change.second.code} {change.second.name}{' (worse)' if change.worse else ''}"
        for change in comparison.kept
    ]
    columns = (Column(title="check"), Column(title="A"), Column(title="B"))
    rows = tuple(
        (name, change.first.message, change.second.message)
        for name, change in zip(names, comparison.kept, strict=True)
    )
    line = facts(Fact(label="Kept", value=", ".join(names), line="kept"))
    table: tuple[Element, ...] = (Table(columns=columns, rows=rows),) if rows else ()
    return Section(key="kept", title="Findings kept", brief=(line,), body=table)


def _loss_chart(losses: tuple[Losses, Losses]) -> Chart:
    """Both over one axis of steps; a step that one of them did not record is not drawn for it."""
    steps = sorted({*losses[0][0], *losses[1][0]})
    series = []
    for label, tone, (own, values) in zip(("A", "B"), ("second", "main"), losses, strict=True):
        known = dict(zip(own, values, strict=True))
        row = [known.get(step) for step in steps]
        series.append(Series(label=label, values=row, tone=tone, sparse=True))
    return Chart(title="Loss by step", series=tuple(series), steps=steps, interactive=True)
