"""Which fixes are worth trying on a patient, and in which order: what touches least comes first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import get_args

from msgspec.structs import replace as changed

from leadline.errors import InputError
from leadline.fixes._engine.edits import code_of
from leadline.fixes._engine.fix import Fix, Patient, Plan
from leadline.records import Edit, Outcome, Reach
from leadline.report.snippet import put_together

REACHES: tuple[Reach, ...] = get_args(Reach)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan of one fix, or of several that are tried together, and the findings it is tried for."""

    fix: str
    title: str
    edits: tuple[Edit, ...]
    reach: Reach
    answers: tuple[str, ...]
    """Codes of the findings it is tried for, the worst first; none of them is a mere note."""
    rooted: bool
    """One of them is a root, and not the consequence of another."""
    promise: float
    code: str
    why: str = ""
    """Why it cannot even be proposed; "" if it can."""

    @property
    def stage(self) -> tuple[bool, int]:
        return (not self.rooted, REACHES.index(self.reach))

    def outcome(self, why: str) -> Outcome:
        """Nothing has been measured yet, and why."""
        return Outcome(
            fix=self.fix,
            title=self.title,
            reach=self.reach,
            answers=self.answers,
            state="not run",
            why=why,
            edits=self.edits,
            code=self.code,
        )


def candidates(patient: Patient, fixes: Sequence[Fix]) -> list[Candidate]:
    """Every plan that answers a finding worse than a note, in the order in which to try them."""
    return in_order([each for fix in fixes for each in _of(fix, patient)])


def in_order(found: Iterable[Candidate]) -> list[Candidate]:
    return sorted(found, key=lambda each: (each.stage, -each.promise))


def stages(found: Iterable[Candidate]) -> Iterator[list[Candidate]]:
    """Candidates in their order, those that reach equally far together."""
    for _, each in groupby(found, key=lambda candidate: candidate.stage):
        yield list(each)


def together(first: Candidate, second: Candidate) -> Candidate:
    """Both, one after the other."""
    return Candidate(
        fix=f"{first.fix} + {second.fix}",
        title=f"{first.title}; {second.title}",
        edits=first.edits + second.edits,
        reach=max(first.reach, second.reach, key=REACHES.index),
        answers=tuple(dict.fromkeys(first.answers + second.answers)),
        rooted=first.rooted or second.rooted,
        promise=second.promise,
        code=put_together((first.code, second.code)),
        why=second.why,
    )


def _of(fix: Fix, patient: Patient) -> Iterator[Candidate]:
    found = [each for each in patient.findings(fix.answers) if each.severity != "info"]
    if found:
        answers = tuple(dict.fromkeys(each.code for each in found))
        yield from proposed(fix, patient, answers, rooted=any(not each.explained_by for each in found))


def proposed(fix: Fix, patient: Patient, answers: tuple[str, ...], *, rooted: bool) -> Iterator[Candidate]:
    """The plans of one fix, whatever was found. A model that has been trained gets those of a fresh one too, marked."""
    try:
        plans = list(fix.propose(patient))
        later = list(fix.propose(_as_fresh(patient))) if _steps(patient) else []
    except InputError as error:
        plan = Plan(title=fix.summary, reach="advice")
        yield _candidate(fix, plan, answers, rooted=rooted, why=refusal(error))
        return
    for plan in plans:
        yield _candidate(fix, plan, answers, rooted=rooted)
    for plan in later:
        if all(plan.edits != each.edits for each in plans):
            yield _candidate(fix, _marked(plan, fix, _steps(patient)), answers, rooted=rooted)


def _steps(patient: Patient) -> int:
    known = patient.profile.optimizer
    return 0 if known is None else known.steps


def _as_fresh(patient: Patient) -> Patient:
    """The patient as if training had not begun: fixes that replace weights propose nothing otherwise."""
    known = patient.profile.optimizer
    assert known is not None  # it has made steps
    profile = changed(patient.profile, optimizer=changed(known, steps=0))
    return replace(patient, report=changed(patient.report, profile=profile))


def _marked(plan: Plan, fix: Fix, steps: int) -> Plan:
    """A fresh model's plan, offered to one that has been trained: what it throws away is said."""
    reach = plan.reach or fix.reach
    if any(edit.action == "draw" for edit in plan.edits):
        return replace(
            plan, title=f"{plan.title} (discards what {steps} steps of training taught)", promise=0.0
        )
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
    )


def refusal(error: InputError) -> str:
    """In one line, for a table."""
    return f"it needs {error.expected}; got {error.got}"
