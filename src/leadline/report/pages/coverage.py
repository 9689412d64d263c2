"""The section of a report about what was not checked."""

from __future__ import annotations

from leadline.records import Coverage, Theory
from leadline.report.page import Details, Element, Fact, Gaps, Paragraph, Section, facts
from leadline.text import count, joined


def coverage_section(coverage: Coverage, theory: Theory | None) -> Section:
    gaps: tuple[Element, ...] = (Gaps(items=coverage.gaps),) if coverage.gaps else ()
    without = {} if theory is None else theory.without
    rules = ", ".join(f"{name} ({amount})" for name, amount in without.items())
    notes: tuple[Element, ...] = (
        (Paragraph(words=f"Ops without a rule of theory: {rules}."),) if rules else ()
    )
    counts = Fact(label="Coverage", value=_coverage_counts(coverage), line="coverage")
    return Section(
        key="unseen",
        title="What was not checked",
        link="Not checked",
        brief=(facts(counts), *gaps)
        if gaps or not coverage.ops
        else (Details(title="Coverage", items=(facts(counts),)),),
        body=(Paragraph(words=_coverage_sentence(coverage, theory)), *gaps, *notes),
    )


def _coverage_counts(coverage: Coverage) -> str:
    if not coverage.ops:
        return "no pass was traced"
    forward = f"{count(coverage.forward)}/{count(coverage.values)} values measured forward"
    ops = f"{count(coverage.ops_known)}/{count(coverage.ops)} ops known"
    return joined(ops, f"{forward}, {count(coverage.backward)} backward")


def _coverage_sentence(coverage: Coverage, theory: Theory | None) -> str:
    predicted = (
        "" if theory is None else f" Theory predicts {count(theory.with_rule)} of {count(theory.ops)} ops."
    )
    complete = "" if coverage.gaps else " There are no known gaps."
    return (
        f"{count(coverage.ops_known)} of {count(coverage.ops)} ops are known; {count(coverage.forward)} of "
        f"{count(coverage.values)} values were measured forward, {count(coverage.backward)} backward."
        f"{predicted}{complete}"
    )
