"""What a rule is: a pure function of a Profile whose docstring is its documentation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from leadline.records import Asked, Finding, Profile, Severity


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

    def __call__(self, profile: Profile) -> Iterator[Finding]:
        for symptom in self.look(profile):
            yield Finding(
                code=self.code,
                name=self.name,
                severity=symptom.severity,
                where=symptom.where,
                message=symptom.message,
                evidence=symptom.evidence,
                layers=symptom.layers,
            )


def rule(
    *,
    code: str,
    name: str,
    since: str,
    sick: Profile,
    healthy: Profile,
    explains: tuple[str, ...] = (),
) -> Callable[[Callable[[Profile], Iterable[Symptom]]], Rule]:
    """Make a Rule of the function below. Nothing is registered: rules are found by looking into their folder."""

    def make(look: Callable[[Profile], Iterable[Symptom]]) -> Rule:
        return Rule(
            code=code,
            name=name,
            since=since,
            explains=explains,
            sick=sick,
            healthy=healthy,
            look=look,
        )

    return make
