"""What a fix is: a function from the context of a model with findings to plans that are worth trying."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leadline.records import Edit, Finding, Profile, Reach, Trace
from leadline.records.report import Report

if TYPE_CHECKING:  # torch-free start: `leadline fixes` lists the fixes without it
    from torch import nn

    from leadline.case import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class FixContext:
    """What a fix may look at. A fix proposes edits and changes nothing itself."""

    case: Case
    trace: Trace
    report: Report

    @property
    def profile(self) -> Profile:
        return self.report.profile

    @property
    def model(self) -> nn.Module:
        """The model whose names the trace uses, without the wrapper that compiles or distributes it."""
        from leadline.tracer.inputs import unwrap  # torch-free start

        return unwrap(self.case.model)

    def findings(self, codes: Iterable[str]) -> tuple[Finding, ...]:
        """The findings with these codes or prefixes of codes, worst first."""
        prefixes = tuple(codes)
        return tuple(finding for finding in self.report.findings if finding.code.startswith(prefixes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Edits that belong together, and how much they are expected to help."""

    title: str
    """One sentence with the numbers: "branches of 24 blocks scaled by 1/sqrt(24) = 0.204"."""
    edits: tuple[Edit, ...] = ()
    """Empty for advice, which consists of `code` alone."""
    promise: float = 0.5
    """Expected effect from 0 to 1. Among plans of the same reach the most promising is tried first."""
    code: str = ""
    """Replaces the code generated from the edits; for advice, the diff or snippet to paste."""
    reach: Reach | None = None
    """Replaces the reach of the fix where this plan touches less."""
    changes_loss: bool = False
    """The loss means something else afterwards, so that it cannot be compared with that of the untreated model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One way to repair a model."""

    name: str
    answers: tuple[str, ...]
    """Codes, or prefixes of codes, of the findings it is tried for."""
    reach: Reach
    since: str
    propose: Callable[[FixContext], Iterable[Plan]]

    @property
    def doc(self) -> str:
        """The page of the fix, as Markdown: one sentence, then sections under fixed headings."""
        return inspect.cleandoc(self.propose.__doc__ or "")

    @property
    def summary(self) -> str:
        return self.doc.split("\n", 1)[0]


def fix(
    *, name: str, answers: tuple[str, ...], reach: Reach, since: str
) -> Callable[[Callable[[FixContext], Iterable[Plan]]], Fix]:
    """Make a Fix of the function below. Nothing is registered: fixes are collected from their folder."""

    def make(propose: Callable[[FixContext], Iterable[Plan]]) -> Fix:
        return Fix(name=name, answers=answers, reach=reach, since=since, propose=propose)

    return make
