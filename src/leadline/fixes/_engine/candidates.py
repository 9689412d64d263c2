"""Which plans are worth trying, and in which order: what changes least comes first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import get_args

from msgspec.structs import replace as replace_fields

from leadline.errors import InputError
from leadline.fixes._engine.edits import code_of
from leadline.fixes._engine.fix import Fix, FixContext, Plan
from leadline.records import Edit, Outcome, Profile, Reach, Severity, severity_rank
from leadline.report.snippet import put_together
from leadline.report.verdict import is_about_wiring

JOINED_NAMES = " + "
"""Between the names of fixes that are tried together."""
REACHES: tuple[Reach, ...] = get_args(Reach)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan of one fix, or of several that are tried together, and the findings it is tried for."""

    fix: str
    title: str
    edits: tuple[Edit, ...]
    reach: Reach
    answers: tuple[str, ...]
    """Codes of the findings it is tried for, the worst first; notes are left out."""
    rooted: bool
    """Whether one of these findings is a root, and not the consequence of another."""
    promise: float
    code: str
    why: str = ""
    """Why the fix could not propose edits; "" if it could."""
    changes_loss: bool = False
    """As in `Plan`."""

    @property
    def stage(self) -> tuple[bool, int]:
        return (not self.rooted, REACHES.index(self.reach))

    def outcome(self, why: str) -> Outcome:
        """The outcome before anything is measured; `why` is the reason for that."""
        return Outcome(
            fix=self.fix,
            title=self.title,
            reach=self.reach,
            answers=self.answers,
            state="not run",
            why=why,
            edits=self.edits,
            code=self.code,
            changes_loss=self.changes_loss,
        )


def find_candidates(context: FixContext, fixes: Sequence[Fix]) -> list[Candidate]:
    """Every plan that answers a finding worse than a note, in the order in which to try them."""
    return sort_candidates([each for fix in fixes for each in _answering_candidates(fix, context)])


def find_advice(context: FixContext, fixes: Sequence[Fix]) -> list[Candidate]:
    """The candidates that only the author of the model can carry out."""
    return [each for each in find_candidates(context, fixes) if each.reach == "advice"]


def needs_author(profile: Profile) -> bool:
    """Whether no edit of weights, rate or blocks can help, so that training would only confirm the finding.

    The batch or a parameter holds NaN already, an op is undefined for its input, or no trainable weight gets a
    gradient because the graph is cut. A result that is too large for its dtype is different: smaller numbers repair it.
    """
    if any(each.source or each.cause != "overflow" for each in profile.anomalies[:1]):
        return True
    weights = [each for each in profile.facts.weights if each.trainable] if profile.facts else []
    cut = {name for each in profile.cuts if each.how != "zero" for name in each.parameters}
    return bool(weights) and all(each.name in cut for each in weights)


def is_left_to_author(context: FixContext, fixes: Sequence[Fix], *, least: Severity = "error") -> bool:
    """Whether the network is asked the wrong question, and no fix proposes an edit for that.

    A training would only lower the wrong loss, so that no trial could prove anything. With a warning as the `least` of
    the findings that count, it may be the wrong one: what findings ask for can be proved then, but not a guess.
    """
    wrong = {
        each.code
        for each in context.report.findings
        if severity_rank(each.severity) >= severity_rank(least) and is_about_wiring(each)
    }
    edited = [
        each for each in find_candidates(context, fixes) if each.edits and wrong.intersection(each.answers)
    ]
    return bool(wrong) and not edited


def sort_candidates(found: Iterable[Candidate]) -> list[Candidate]:
    return sorted(found, key=lambda each: (each.stage, -each.promise))


def stages(found: Iterable[Candidate]) -> Iterator[list[Candidate]]:
    """Sorted candidates in groups of equal reach."""
    for _, each in groupby(found, key=lambda candidate: candidate.stage):
        yield list(each)


def combine(first: Candidate, second: Candidate) -> Candidate:
    """Both candidates, one after the other."""
    return Candidate(
        fix=f"{first.fix}{JOINED_NAMES}{second.fix}",
        title=f"{first.title}; {second.title}",
        edits=first.edits + second.edits,
        reach=max(first.reach, second.reach, key=REACHES.index),
        answers=tuple(dict.fromkeys(first.answers + second.answers)),
        rooted=first.rooted or second.rooted,
        promise=second.promise,
        code=put_together((first.code, second.code)),
        why=second.why,
        changes_loss=first.changes_loss or second.changes_loss,
    )


def _answering_candidates(fix: Fix, context: FixContext) -> Iterator[Candidate]:
    findings = [each for each in context.findings(fix.answers) if each.severity != "info"]
    if findings:
        answers = tuple(dict.fromkeys(each.code for each in findings))
        rooted = any(not each.explained_by for each in findings)
        yield from candidates_of(fix, context, answers, rooted=rooted)


def candidates_of(
    fix: Fix, context: FixContext, answers: tuple[str, ...], *, rooted: bool
) -> Iterator[Candidate]:
    """The plans of one fix, for any findings. A model that has been trained also gets plans for a fresh one."""
    steps = _steps_made(context)
    try:
        plans = list(fix.propose(context))
        fresh_plans = list(fix.propose(_as_fresh(context))) if steps else []
    except InputError as error:
        plan = Plan(title=fix.summary, reach="advice")
        yield _candidate(fix, plan, answers, rooted=rooted, why=refusal(error))
        return
    for plan in plans:
        yield _candidate(fix, plan, answers, rooted=rooted)
    for plan in fresh_plans:
        if all(plan.edits != each.edits for each in plans):
            yield _candidate(fix, _mark_fresh_plan(plan, fix, steps), answers, rooted=rooted)


def _steps_made(context: FixContext) -> int:
    optimizer = context.profile.optimizer
    return 0 if optimizer is None else optimizer.steps


def _as_fresh(context: FixContext) -> FixContext:
    """The context as if training had not begun: otherwise fixes that replace weights propose nothing."""
    optimizer = context.profile.optimizer
    assert optimizer is not None  # it has made steps
    profile = replace_fields(context.profile, optimizer=replace_fields(optimizer, steps=0))
    return replace(context, report=replace_fields(context.report, profile=profile))


def _mark_fresh_plan(plan: Plan, fix: Fix, steps: int) -> Plan:
    """A plan for a fresh model, offered to a trained one; the title says what it discards."""
    reach = plan.reach or fix.reach
    if any(edit.action in ("draw", "reset") for edit in plan.edits):
        return replace(plan, title=f"{plan.title} (discards {steps} steps of training)", promise=0.0)
    if reach in ("init", "architecture"):
        return replace(plan, title=f"{plan.title} (on weights trained for {steps} steps without it)")
    return plan


def _candidate(fix: Fix, plan: Plan, answers: tuple[str, ...], *, rooted: bool, why: str = "") -> Candidate:
    return Candidate(
        fix=fix.name,
        title=plan.title,
        edits=plan.edits,
        reach=plan.reach or fix.reach,
        answers=answers,
        rooted=rooted,
        promise=plan.promise,
        code=plan.code or code_of(plan.edits),
        why=why,
        changes_loss=plan.changes_loss,
    )


def refusal(error: InputError) -> str:
    """The error in one line, for a table."""
    return f"it needs {error.expected}; got {error.got}"
