"""The headline of a report: the verdict, and one sentence with the number that decided it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from leadline.records import Finding
from leadline.report.depth import gains
from leadline.report.look import Bar
from leadline.report.text import clean, count, factor, first_clause, plural

if TYPE_CHECKING:
    from leadline.report.report import Report

TITLES = {"trains": "TRAINS", "poor": "TRAINS POORLY", "fails": "DOES NOT TRAIN", "undecided": "UNDECIDED"}
SEVERITIES = ("info", "warning", "error")


def by_severity(findings: Sequence[Finding]) -> list[Finding]:
    """The worst first; otherwise in the order of the rules."""
    return sorted(findings, key=lambda finding: -SEVERITIES.index(finding.severity))


def fails(finding: Finding, bar: Bar) -> bool:
    """Whether this finding is a reason to stop: as severe as the bar, and not one that the baseline lists."""
    return (
        not finding.known and bar != "never" and SEVERITIES.index(finding.severity) >= SEVERITIES.index(bar)
    )


def headline(report: Report) -> str:
    """The verdict and its sentence, in one line of plain text."""
    return f"{TITLES[report.verdict]}: {sentence(report)}"


def sentence(report: Report) -> str:
    """Why the verdict is what it is, to be read behind it and a colon."""
    if report.profile.predicted:
        return f"{_reason(report).removesuffix(' (predicted)')} (predicted, not measured)"
    return _reason(report)


def _reason(report: Report) -> str:
    if report.verdict == "undecided":
        return _what_is_missing(report)
    if report.verdict == "trains" or not report.findings:
        return _evidence_of_health(report)
    worst = by_severity(report.findings)[0]
    return first_clause(clean(worst.message))


def _what_is_missing(report: Report) -> str:
    profile, coverage = report.profile, report.coverage
    if profile.predicted:
        known = sum(each.backward_ms_predicted is not None for each in profile.blocks)
        return (
            f"theory follows the signal and its gradient to {known} of {plural(len(profile.blocks), 'block')}"
        )
    if not profile.backward_ran:
        return "the backward pass did not run, so nothing is known about the gradients"
    if not profile.blocks:
        return "no path of weight layers leads from a batch input to the loss, so there is no depth to judge"
    return (
        f"of {plural(coverage.values, 'value')}, {count(coverage.forward)} were measured forward and "
        f"{count(coverage.backward)} backward: too few to judge"
    )


def _evidence_of_health(report: Report) -> str:
    profile = report.profile
    forward, backward = gains(profile, 0) if profile.streams else (None, None)
    if forward is None or backward is None:
        return f"no rule found anything in {plural(len(profile.blocks), 'block')}"
    depth = plural(profile.streams[0].blocks, "block")
    return f"over {depth} the signal changes {factor(forward)} a block, its gradient {factor(backward)}"
