"""A check: a pure function of a Profile or of a run's History, whose docstring is its documentation."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, overload

from msgspec.structs import replace

from leadline.checks._history import History
from leadline.records import CheckRow, Finding, Margin, OpSite, Profile, Rehearsal, Severity, Source
from leadline.records.run import Alert
from leadline.text import on_batches

Refutation = Literal["", "learning", "falling"]
Subject = TypeVar("Subject", Profile, History)

# Heuristic: half of the window of 128 steps that run checks read.
DEFAULT_CALM_STEPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """What a check measured, before the code and name of the check are added."""

    severity: Severity
    where: str
    message: str
    """What was measured: one sentence with one number and its unit."""
    action: str
    """What to do: one imperative sentence with the API call or config change."""
    evidence: dict[str, float]
    layers: tuple[int, int] | None = None
    source: Source | None = None
    """The line of the user's code that it is about, if that is one line."""
    since: int = 0
    """Run checks: the step since which it has been so."""
    trend: float | None = None
    """Run checks: relative change per step."""
    forecast: str = ""
    """Run checks: what happens if nothing changes."""


def in_op(site: OpSite | None) -> str:
    """A clause that names the op where something first happens; "" if it is not known."""
    if site is None:
        return ""
    return f", first in the op {site.op}" + (f" of {site.module}" if site.module else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that can be wrong, with one example that has it and one that does not.

    A model check reads a Profile and yields findings; a run check (code T...) reads a History and yields alerts.
    """

    code: str
    name: str
    since: str
    sick: Any
    healthy: Any
    look: Callable[[Any], Iterable[Symptom]]
    explains: tuple[str, ...] = ()
    """Codes of the checks whose findings are consequences of this one, where both concern the same blocks or steps."""
    refuted_by: Refutation = ""
    """Model checks: what a rehearsal must show to turn findings into notes. "learning": the network learns although
    the check says it will not (without an optimizer: it has learned before); "falling": the loss falls step by step
    although the check says steps are too long. "": nothing does, because the check names a part that is broken."""
    margins: Callable[[Profile], Iterable[Margin]] | None = None
    """Model checks: the quantities that it compares with limits; `read_margins` adds the code."""
    needs: tuple[str, ...] = ()
    """Run checks: the metrics it reads; it does not run where none of them was recorded."""
    every: int = 1
    """Run checks: steps between two looks; checks that read one number per parameter look less often."""
    confirm: int = 1
    """Run checks: looks in a row that must see it before it is reported."""
    calm: int = DEFAULT_CALM_STEPS
    """Run checks: steps without a symptom before the alert is over."""

    @property
    def doc(self) -> str:
        """The page of the check, as Markdown: one sentence, then sections under fixed headings."""
        return inspect.cleandoc(self.look.__doc__ or "")

    @property
    def summary(self) -> str:
        return (self.look.__doc__ or "").lstrip().partition("\n")[0]

    @property
    def reads_run(self) -> bool:
        return self.code.startswith("T")

    def row(self, findings: Sequence[Finding]) -> CheckRow:
        """The row of this check in a report, with its documentation if the check found something."""
        page = self.doc if any(finding.code == self.code for finding in findings) else ""
        return CheckRow(code=self.code, name=self.name, summary=self.summary, page=page)

    def refutation(self, profile: Profile) -> str:
        """A clause that says how the rehearsal, or what was learned before, contradicts this check; "" if neither does.

        Without an optimizer, a network that has learned shows that it can be trained. With one, only the rehearsal
        tells whether these settings go on. Rules about initialization do not apply to weights that were trained before.
        """
        rehearsal = profile.rehearsal
        if self.code.startswith("I") and self.refuted_by and profile.is_pretrained:
            return "yet the weights were trained before, as their singular values show: no initializer is at work"
        if rehearsal is None and profile.optimizer is None and self.refuted_by and profile.has_learned:
            return (
                f"yet the loss of {profile.loss:.3g} is already below {profile.constant_loss:.3g}, that of the best "
                "constant output: the network has learned"
            )
        if rehearsal is None or not self.refuted_by:
            return ""
        falls = self.refuted_by == "falling" and rehearsal.beginning.falls
        if not (rehearsal.shows_learning or falls):
            return ""
        return refutation_clause(rehearsal)

    def read_margins(self, profile: Profile) -> Iterator[Margin]:
        """How far the profile is from the limits of this check. A non-finite quantity is a finding, not a margin."""
        for margin in self.margins(profile) if self.margins else ():
            if math.isfinite(margin.value):
                yield replace(margin, code=self.code)

    @overload
    def __call__(self, subject: Profile) -> Iterator[Finding]: ...
    @overload
    def __call__(self, subject: History) -> Iterator[Alert]: ...
    def __call__(self, subject: Profile | History) -> Iterator[Finding] | Iterator[Alert]:
        """Findings of a model check in a Profile, or alerts of a run check in a History."""
        return self._findings(subject) if isinstance(subject, Profile) else self._alerts(subject)

    def _findings(self, profile: Profile) -> Iterator[Finding]:
        refuted = self.refutation(profile)
        for symptom in self.look(profile):
            note = refuted and symptom.severity != "info"
            yield Finding(
                code=self.code,
                name=self.name,
                severity="info" if note else symptom.severity,
                where=symptom.where,
                message=f"{symptom.message}; {refuted}" if note else symptom.message,
                action=symptom.action,
                evidence=symptom.evidence,
                layers=symptom.layers,
                source=symptom.source,
            )

    def _alerts(self, history: History) -> Iterator[Alert]:
        for symptom in self.look(history):
            yield self.alert(symptom, step=history.step or 0)

    def alert(self, symptom: Symptom, *, step: int, rank: int = 0) -> Alert:
        return Alert(
            code=self.code,
            name=self.name,
            severity=symptom.severity,
            message=symptom.message,
            action=symptom.action,
            where=symptom.where,
            layers=symptom.layers,
            since=symptom.since,
            step=step,
            trend=symptom.trend,
            forecast=symptom.forecast,
            evidence=symptom.evidence,
            rank=rank,
        )


def check(  # noqa: PLR0913  (the fields of a Check, each by name)
    *,
    code: str,
    name: str,
    since: str,
    sick: Subject,
    healthy: Subject,
    explains: tuple[str, ...] = (),
    refuted_by: Refutation = "",
    margins: Callable[[Profile], Iterable[Margin]] | None = None,
    needs: tuple[str, ...] = (),
    every: int = 1,
    confirm: int = 1,
    calm: int = DEFAULT_CALM_STEPS,
) -> Callable[[Callable[[Subject], Iterable[Symptom]]], Check]:
    """Make a Check of the decorated function. Nothing is registered: checks are collected from their folder."""

    def make(look: Callable[[Subject], Iterable[Symptom]]) -> Check:
        return Check(
            code=code,
            name=name,
            since=since,
            sick=sick,
            healthy=healthy,
            look=look,
            explains=explains,
            refuted_by=refuted_by,
            margins=margins,
            needs=needs,
            every=every,
            confirm=confirm,
            calm=calm,
        )

    return make


def refutation_clause(rehearsal: Rehearsal) -> str:
    """What the first steps did to the loss, as a clause to follow a finding that they refute."""
    shown = rehearsal if rehearsal.batches > 1 and rehearsal.learned else rehearsal.beginning
    if not shown.last < shown.first:
        shown = rehearsal
    steps = f"{shown.steps} steps {on_batches(shown.batches, is_split=shown.is_split)}"
    return f"yet {steps} took the loss from {shown.first:.3g} to {shown.last:.3g}"
