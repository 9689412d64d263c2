"""The verdict of a report in words: its title, the sentence that says what decided it, and the order of findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from leadline.records import FailOn, Finding, Profile, Rehearsal, RunSummary, severity_rank
from leadline.report.depth import cliff_names, rates
from leadline.text import clean, count, factor, first_clause, number, on_batches, plural

if TYPE_CHECKING:
    from leadline.records.report import Report

TITLES = {"trains": "TRAINS", "poor": "TRAINS POORLY", "fails": "DOES NOT TRAIN", "undecided": "UNDECIDED"}

WIRING_CODES = frozenset({"B203", "I309"})
"""Checks of wiring outside the family D: a cut graph, and a squashing function before a loss that has its own."""


def by_severity(findings: Sequence[Finding]) -> list[Finding]:
    """The worst first; otherwise in the order of the checks."""
    return sorted(findings, key=lambda finding: -severity_rank(finding.severity))


def rooted(findings: Sequence[Finding]) -> list[tuple[Finding, list[Finding]]]:
    """Each root finding with all of its direct and indirect consequences; the tree with the worst finding first."""
    ordered = by_severity(findings)
    codes = {finding.code for finding in findings}
    links = {each.code: each.explained_by for each in findings if each.explained_by in codes}
    causes = {code: cause for code, cause in links.items() if _root(code, links) not in links}  # no cycles
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


def fails(finding: Finding, fail_on: FailOn) -> bool:
    """Whether the finding makes a check fail: it is at least as severe as `fail_on`, and not in the baseline."""
    return (
        not finding.known and fail_on != "never" and severity_rank(finding.severity) >= severity_rank(fail_on)
    )


def message_with_action(finding: Finding) -> str:
    """What was measured, and then what to do."""
    if not finding.action:
        return finding.message
    return f"{finding.message.rstrip('.')}. {finding.action}"


def title(report: Report) -> str:
    """The verdict in capitals. A network that will lower its loss for the wrong reason does not "not train"."""
    errors = [finding for finding in report.findings if finding.severity == "error"]
    rehearsal = report.profile.rehearsal
    falls = rehearsal is not None and rehearsal.last < rehearsal.first
    if errors and falls and all(is_about_wiring(each) for each in errors):
        return "LEARNS THE WRONG THING"
    return TITLES[report.verdict]


def is_about_wiring(finding: Finding) -> bool:
    """Whether the finding is about what the network is asked and which parts learn, not about whether it can train."""
    return finding.code.startswith("D") or finding.code in WIRING_CODES


def asked(report: Report) -> str:
    """Which questions the verdict answers, and which it does not because they were not asked."""
    predicted = ", by theory" if report.profile.predicted else ""
    questions = {**_model_questions(report.profile), **_training_questions(report)}
    yes = ", ".join(name for name, is_asked in questions.items() if is_asked)
    no = ", ".join(name for name, is_asked in questions.items() if not is_asked)
    return f"Asked{predicted}: {yes or 'nothing'}." + (f" Not asked: {no}." if no else "")


def _model_questions(profile: Profile) -> dict[str, bool]:
    """What can be asked of a model and one batch."""
    dependence, question = profile.dependence, profile.question
    return {
        "signal": bool(profile.blocks),
        "gradient": profile.backward_ran and bool(profile.blocks),
        "what outputs see": dependence is not None and bool(dependence.perturbations),
        "what the loss rewards": question is not None and bool(question.predictions),
        "which tensors learn": profile.ledger is not None,
    }


def _training_questions(report: Report) -> dict[str, bool]:
    """What can be asked of training: the optimizer, its first steps, other batches and the loop."""
    profile, course = report.profile, report.course
    if course is not None:
        return {f"the loop ({steps_of(course)})": True}
    if profile.optimizer is None:
        questions = {"the optimizer (none)": False}
    else:
        questions = {"one step": profile.update is not None}
        rehearsal = profile.rehearsal
        questions["first steps" if rehearsal is None else plural(rehearsal.steps, "step")] = (
            rehearsal is not None
        )
    if report.followed_steps:
        return {
            **questions,
            "other batches": True,
            f"your loop ({plural(report.followed_steps, 'step')})": True,
        }
    return {**questions, "other batches": _saw_other_batches(profile.rehearsal), "your loop": False}


def _saw_other_batches(rehearsal: Rehearsal | None) -> bool:
    if rehearsal is None:
        return False
    return rehearsal.batches > 1 or (rehearsal.held_out is not None and not rehearsal.is_split)


def headline(report: Report) -> str:
    """The verdict and its sentence, in one line of plain text."""
    return f"{title(report)}: {sentence(report)}"


def sentence(report: Report) -> str:
    """What decided the verdict, as a clause to follow it and a colon; then which findings were ignored."""
    reason = _reason(report)
    if report.profile.predicted:
        reason = f"{reason.removesuffix(' (predicted)')} (predicted, not measured)"
    return f"{reason}{_ignored_words(report.ignored)}"


def _ignored_words(ignored: Sequence[Finding]) -> str:
    """How many findings were ignored that could have changed the verdict; an info never does."""
    serious = [finding for finding in ignored if finding.severity != "info"]
    codes = ", ".join(dict.fromkeys(clean(finding.code) for finding in serious))
    return f" ({plural(len(serious), 'finding')} ignored: {codes})" if serious else ""


def _reason(report: Report) -> str:
    course, undecided = report.course, report.verdict == "undecided"
    if course is not None and (undecided or (report.verdict == "trains" and course.last_loss is not None)):
        return _course_words(course, undecided=undecided, is_traced=report.coverage.ops > 0)
    if undecided:
        return missing_evidence(report)
    if report.verdict == "trains" or not report.findings:
        return _evidence_of_health(report)
    root, below = rooted(report.findings)[0]
    worst = by_severity([root, *below])[0]
    clause = first_clause(clean(worst.message))
    return clause if worst is root else f"{clause}, because of {root.code} {clean(root.name)}"


def _course_words(course: RunSummary, *, undecided: bool, is_traced: bool) -> str:
    if course.last_loss is None:
        return f"{steps_of(course)} without a recorded loss"
    change = f"the loss went from {number(course.first_loss)} to {number(course.last_loss)}"
    words = course.progress or f"over {steps_of(course)} {change}"
    if undecided:
        return words if course.progress else f"{words}: too few to judge"
    return f"{words}, and none of {course.alarms} checks fired" + (
        "" if is_traced else "; no pass was traced"
    )


def steps_of(course: RunSummary) -> str:
    """How many steps were recorded, and of how many if some were not."""
    part = f"{count(course.steps)} of " if course.steps < course.seen else ""
    return f"{part}{plural(max(course.seen, course.steps), 'step')}"


def missing_evidence(report: Report) -> str:
    """Why there is no verdict."""
    profile, coverage = report.profile, report.coverage
    if profile.predicted:
        known = sum(each.backward_ms_predicted is not None for each in profile.blocks)
        blocks = plural(len(profile.blocks), "block")
        return f"theory predicts the signal and its gradient in only {known} of {blocks}"
    if not profile.backward_ran:
        return "the backward pass did not run, so nothing is known about the gradients"
    if not profile.blocks:
        return "no path of weight layers leads from a batch input to the loss, so there is no depth to judge"
    return (
        f"of {plural(coverage.values, 'value')}, {count(coverage.forward)} were measured forward and "
        f"{count(coverage.backward)} backward: too few to judge"
    )


def _evidence_of_health(report: Report) -> str:
    """What speaks for the model: its first steps if they were tried, otherwise the signal along its depth."""
    profile = report.profile
    learned = "" if profile.rehearsal is None else _learned_words(profile.rehearsal)
    if learned:
        return learned
    forward, backward = rates(profile, 0) if profile.streams else (None, None)
    if forward is None or backward is None:
        result = "nothing worse than a note" if report.findings else "nothing"
        return f"{len(report.rules)} checks found {result} in {plural(len(profile.blocks), 'block')}"
    blocks = plural(profile.streams[0].blocks, "block")
    words = f"over {blocks} the signal changes {factor(forward)} per block, its gradient {factor(backward)}"
    cliffs = cliff_names(profile, 0)
    if not cliffs:
        return words
    others = f" and {plural(len(cliffs) - 1, 'other block')}" if len(cliffs) > 1 else ""
    return f"{words}, apart from a jump across {clean(cliffs[0])}{others}"


def _learned_words(rehearsal: Rehearsal) -> str:
    """What the first steps did to the loss; "" if they did not lower it."""
    first, last, constant = rehearsal.first, rehearsal.last, rehearsal.constant
    if not last < first:
        return ""
    steps = f"{plural(rehearsal.steps, 'step')} {on_batches(rehearsal.batches, is_split=rehearsal.is_split)}"
    words = f"{steps} took the loss from {number(first)} to {number(last)}"
    if constant is None or not last < constant:
        return words
    return f"{words}, below the {number(constant)} of a constant output"
