"""What a fix is: from a sick model's findings to edits that are worth trying; its docstring is its documentation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from leadline.case import Case
from leadline.records import Edit, Finding, Profile, Reach, Trace
from leadline.records.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """What a fix may look at. It proposes; it changes nothing."""

    case: Case
    trace: Trace
    report: Report

    @property
    def profile(self) -> Profile:
        return self.report.profile

    def findings(self, codes: Iterable[str]) -> tuple[Finding, ...]:
        """What was found by the rules of these codes or prefixes of codes, worst first."""
        wanted = tuple(codes)
        return tuple(each for each in self.report.findings if each.code.startswith(wanted))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Edits that belong together, and what they are good for."""

    title: str
    """One sentence with the numbers: "branches of 24 blocks scaled by 1/sqrt(24) = 0.204"."""
    edits: tuple[Edit, ...] = ()
    """None for advice: then `code` is all there is."""
    promise: float = 0.5
    """Expected effect, 0 to 1: among plans of the same reach the most promising is tried first."""
    code: str = ""
    """Overrides the code that the edits' actions write; for advice, the diff or snippet to paste."""
    reach: Reach | None = None
    """Overrides that of the fix where this plan reaches less far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One way to repair, found by looking into the folder of fixes."""

    name: str
    answers: tuple[str, ...]
    """Codes, or prefixes of codes, of the findings it is tried for."""
    reach: Reach
    since: str
    propose: Callable[[Patient], Iterable[Plan]]

    @property
    def doc(self) -> str:
        """The fix's page, as Markdown: one sentence, then sections under fixed headings."""
        return inspect.cleandoc(self.propose.__doc__ or "")

    @property
    def summary(self) -> str:
        return self.doc.split("\n", 1)[0]


def fix(
    *, name: str, answers: tuple[str, ...], reach: Reach, since: str
) -> Callable[[Callable[[Patient], Iterable[Plan]]], Fix]:
    """Make a Fix of the function below. Nothing is registered: fixes are found by looking into their folder."""

    def make(propose: Callable[[Patient], Iterable[Plan]]) -> Fix:
        return Fix(name=name, answers=answers, reach=reach, since=since, propose=propose)

    return make
