"""What a rule is: a pure function of a Profile whose docstring is its documentation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from leadline.records import Asked, Finding, Profile, Rehearsal, Severity

Refuted = Literal["", "learning", "falling"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """What a rule saw, before the rule's own name is put on it."""

    severity: Severity
    where: str
    message: str
    evidence: dict[str, float]
    layers: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A sickness that can be read off a Profile, with one profile that has it and one that does not."""

    code: str
    name: str
    since: str
    sick: Profile
    healthy: Profile
    look: Callable[[Profile], Iterable[Symptom]]
    explains: tuple[str, ...] = ()
    """Codes of the rules whose findings are consequences of this one's, where both are about the same blocks."""
    refuted_by: Refuted = ""
    """What a rehearsal has to show to make notes of its findings: that the network learns, where the rule says that it
    will not; or that the loss falls step by step, where it says that steps are too long. "": nothing does, because the
    rule names a part that is broken."""

    @property
    def doc(self) -> str:
        """The rule's page, as Markdown: one sentence, then sections under fixed headings."""
        return inspect.cleandoc(self.look.__doc__ or "")

    @property
    def summary(self) -> str:
        return self.doc.split("\n", 1)[0]

    def asked(self, findings: Sequence[Finding]) -> Asked:
        """What a report says of this rule; with its page if it is among those that found something."""
        page = self.doc if any(finding.code == self.code for finding in findings) else ""
        return Asked(code=self.code, name=self.name, summary=self.summary, page=page)

    def refutation(self, rehearsal: Rehearsal | None) -> str:
        """How what this rule foretells did not come, in a clause; "" where it may have, or nothing was tried."""
        if rehearsal is None or not self.refuted_by:
            return ""
        if not (rehearsal.learned or (self.refuted_by == "falling" and rehearsal.falls)):
            return ""
        first, last = rehearsal.losses[0], rehearsal.losses[-1]
        return f"yet {rehearsal.steps} steps on this batch took the loss from {first:.3g} to {last:.3g}"

    def __call__(self, profile: Profile) -> Iterator[Finding]:
        refuted = self.refutation(profile.rehearsal)
        for symptom in self.look(profile):
            note = refuted and symptom.severity != "info"
            yield Finding(
                code=self.code,
                name=self.name,
                severity="info" if note else symptom.severity,
                where=symptom.where,
                message=f"{symptom.message}; {refuted}" if note else symptom.message,
                evidence=symptom.evidence,
                layers=symptom.layers,
            )


def rule(  # noqa: PLR0913  (the fields of a rule, each by name)
    *,
    code: str,
    name: str,
    since: str,
    sick: Profile,
    healthy: Profile,
    explains: tuple[str, ...] = (),
    refuted_by: Refuted = "",
) -> Callable[[Callable[[Profile], Iterable[Symptom]]], Rule]:
    """Make a Rule of the function below. Nothing is registered: rules are found by looking into their folder."""

    def make(look: Callable[[Profile], Iterable[Symptom]]) -> Rule:
        return Rule(
            code=code,
            name=name,
            since=since,
            explains=explains,
            refuted_by=refuted_by,
            sick=sick,
            healthy=healthy,
            look=look,
        )

    return make
