"""The section of a report about what was not checked."""

from __future__ import annotations

from collections.abc import Sequence

from leadline.records import Gap
from leadline.records.report import Report
from leadline.report.page import Details, Element, Fact, Gaps, Paragraph, Section, facts
from leadline.text import count, joined


def coverage_section(report: Report) -> Section:
    coverage, theory = report.coverage, report.profile.theory
    gaps = _gaps(coverage.gaps)
    unusual = _gaps([gap for gap in coverage.gaps if not gap.is_usual])
    usual = _gaps([gap for gap in coverage.gaps if gap.is_usual])
    without = {} if theory is None else theory.without
    rules = ", ".join(f"{name} ({amount})" for name, amount in without.items())
    notes: tuple[Element, ...] = (
        (Paragraph(words=f"Ops without a rule of theory: {rules}."),) if rules else ()
    )
    counts = Fact(label="Coverage", value=_coverage_counts(report), line="coverage")
    return Section(
        key="unseen",
        title="What was not checked",
        link="Not checked",
        brief=(facts(counts), *unusual, *_details(usual))
        if unusual or not coverage.ops
        else _details((facts(counts), *usual)),
        body=(Paragraph(words=_coverage_sentence(report)), *gaps, *notes),
    )


def _gaps(gaps: Sequence[Gap]) -> tuple[Element, ...]:
    return (Gaps(items=tuple(gaps)),) if gaps else ()


def _details(items: tuple[Element, ...]) -> tuple[Element, ...]:
    return (Details(title="Coverage", items=items),) if items else ()


def _coverage_counts(report: Report) -> str:
    coverage = report.coverage
    if not coverage.ops:
        return "no pass was traced"
    if report.profile.predicted:
        return f"{count(coverage.ops_known)}/{count(coverage.ops)} ops known · nothing was measured"
    forward = f"{count(coverage.forward)}/{count(coverage.values)} values measured forward"
    ops = f"{count(coverage.ops_known)}/{count(coverage.ops)} ops known"
    return joined(ops, f"{forward}, {count(coverage.backward)} backward")


def _coverage_sentence(report: Report) -> str:
    coverage, theory = report.coverage, report.profile.theory
    predicted = (
        "" if theory is None else f" Theory predicts {count(theory.with_rule)} of {count(theory.ops)} ops."
    )
    complete = "" if coverage.gaps else " There are no known gaps."
    measured = (
        f"{count(coverage.forward)} of {count(coverage.values)} values were measured forward, "
        f"{count(coverage.backward)} backward"
    )
    if report.profile.predicted:
        measured = "nothing was measured, because the model has no weights"
    return f"{count(coverage.ops_known)} of {count(coverage.ops)} ops are known; {measured}.{predicted}{complete}"
