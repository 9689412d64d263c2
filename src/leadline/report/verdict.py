"""The headline of a report: the verdict, and one sentence with the number that decided it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from leadline.records import Finding, RunSummary, severity_rank
from leadline.report.depth import gains
from leadline.report.layout import FailOn
from leadline.text import clean, count, factor, first_clause, number, plural

if TYPE_CHECKING:
    from leadline.records.report import Report

TITLES = {"trains": "TRAINS", "poor": "TRAINS POORLY", "fails": "DOES NOT TRAIN", "undecided": "UNDECIDED"}


def by_severity(findings: Sequence[Finding]) -> list[Finding]:
    """The worst first; otherwise in the order of the rules."""
    return sorted(findings, key=lambda finding: -severity_rank(finding.severity))


def rooted(findings: Sequence[Finding]) -> list[tuple[Finding, list[Finding]]]:
    """Each root with its consequences, however far: the tree that holds the worst finding first."""
    ordered = by_severity(findings)
    codes = {finding.code for finding in findings}
    said = {each.code: each.explained_by for each in findings if each.explained_by in codes}
    causes = {code: cause for code, cause in said.items() if _root(code, said) not in said}  # no circles
    below: dict[str, list[Finding]] = {}
    for each in ordered:
        if each.code in causes:
            below.setdefault(_root(each.code, causes), []).append(each)
    trees = [(each, below.pop(each.code, [])) for each in ordered if each.code not in causes]
    return sorted(trees, key=lambda tree: -max(severity_rank(each.severity) for each in (tree[0], *tree[1])))


def _root(code: str, causes: Mapping[str, str]) -> str:
    for _ in causes:
        code = causes.get(code, code)
    return code


def fails(finding: Finding, bar: FailOn) -> bool:
    """Whether this finding is a reason to stop: as severe as the bar, and not one that the baseline lists."""
    return not finding.known and bar != "never" and severity_rank(finding.severity) >= severity_rank(bar)


def headline(report: Report) -> str:
    """The verdict and its sentence, in one line of plain text."""
    return f"{TITLES[report.verdict]}: {sentence(report)}"


def sentence(report: Report) -> str:
    """Why the verdict is what it is, to be read behind it and a colon; and what the user told not to count."""
    reason = _reason(report)
    if report.profile.predicted:
        reason = f"{reason.removesuffix(' (predicted)')} (predicted, not measured)"
    return f"{reason}{_left_out(report.ignored)}"


def _left_out(ignored: Sequence[Finding]) -> str:
    """How many findings would have decided otherwise, perhaps; notes never decide."""
    serious = [finding for finding in ignored if finding.severity != "info"]
    codes = ", ".join(dict.fromkeys(clean(finding.code) for finding in serious))
    return f" ({plural(len(serious), 'finding')} ignored: {codes})" if serious else ""


def _reason(report: Report) -> str:
    course, undecided = report.course, report.verdict == "undecided"
    if course is not None and (undecided or (report.verdict == "trains" and course.last_loss is not None)):
        return _what_the_course_says(course, undecided=undecided)
    if report.verdict == "undecided":
        return _what_is_missing(report)
    if report.verdict == "trains" or not report.findings:
        return _evidence_of_health(report)
    root, below = rooted(report.findings)[0]
    worst = by_severity([root, *below])[0]
    told = first_clause(clean(worst.message))
    return told if worst is root else f"{told}, because of {root.code} {clean(root.name)}"


def _what_the_course_says(course: RunSummary, *, undecided: bool) -> str:
    if course.last_loss is None:
        return f"{steps_of(course)}, and no loss among their numbers"
    went = f"the loss went from {number(course.first_loss)} to {number(course.last_loss)}"
    over = f"over {steps_of(course)} {went}"
    return f"{over}: too few to judge" if undecided else f"{over}, and none of {course.alarms} alarms stands"


def steps_of(course: RunSummary) -> str:
    """How many were recorded; of how many, if not all were."""
    part = f"{count(course.steps)} of " if course.steps < course.seen else ""
    return f"{part}{plural(max(course.seen, course.steps), 'step')}"


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
        found = "nothing worse than a note" if report.findings else "nothing"
        return f"{len(report.rules)} rules found {found} in {plural(len(profile.blocks), 'block')}"
    depth = plural(profile.streams[0].blocks, "block")
    return f"over {depth} the signal changes {factor(forward)} a block, its gradient {factor(backward)}"
