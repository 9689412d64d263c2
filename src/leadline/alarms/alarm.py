"""What an alarm is: a pure function of a History whose docstring is its documentation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from leadline.alarms.history import History
from leadline.records import Severity
from leadline.records.run import Alert

CALM = 64  # steps without a symptom before an alert is over; ours: half of the window of 128 steps that alarms look at


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """What an alarm saw, before its own name is put on it."""

    severity: Severity
    where: str
    message: str
    evidence: dict[str, float]
    since: int
    layers: tuple[int, int] | None = None
    trend: float | None = None
    forecast: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A sickness of training that can be read off a History, with one history that has it and one that does not."""

    code: str
    name: str
    since: str
    needs: tuple[str, ...]
    """Metrics that it reads; it is not asked where none of them was recorded."""
    sick: History
    healthy: History
    look: Callable[[History], Iterable[Symptom]]
    explains: tuple[str, ...] = ()
    """Codes of alarms that say nothing new while this one stands."""
    every: int = 1
    """Steps between two looks: those that read a vector with a number for each parameter look less often."""
    confirm: int = 1
    """Looks in a row that must see it before it is said."""
    calm: int = CALM
    """Steps without a symptom before the alert is over."""

    @property
    def doc(self) -> str:
        """The alarm's page, as Markdown: one sentence, then sections under fixed headings."""
        return inspect.cleandoc(self.look.__doc__ or "")

    @property
    def summary(self) -> str:
        return self.doc.split("\n", 1)[0]

    def __call__(self, history: History) -> Iterator[Alert]:
        for symptom in self.look(history):
            yield self.alert(symptom, step=history.step or 0)

    def alert(self, symptom: Symptom, *, step: int, rank: int = 0) -> Alert:
        return Alert(
            code=self.code,
            name=self.name,
            severity=symptom.severity,
            message=symptom.message,
            where=symptom.where,
            layers=symptom.layers,
            since=symptom.since,
            step=step,
            trend=symptom.trend,
            forecast=symptom.forecast,
            evidence=symptom.evidence,
            rank=rank,
        )


def alarm(  # noqa: PLR0913  (the fields of an alarm, each by name)
    *,
    code: str,
    name: str,
    since: str,
    needs: tuple[str, ...],
    sick: History,
    healthy: History,
    explains: tuple[str, ...] = (),
    every: int = 1,
    confirm: int = 1,
    calm: int = CALM,
) -> Callable[[Callable[[History], Iterable[Symptom]]], Alarm]:
    """Make an Alarm of the function below. Nothing is registered: alarms are found by looking into their folder."""

    def make(look: Callable[[History], Iterable[Symptom]]) -> Alarm:
        return Alarm(
            code=code,
            name=name,
            since=since,
            needs=needs,
            sick=sick,
            healthy=healthy,
            look=look,
            explains=explains,
            every=every,
            confirm=confirm,
            calm=calm,
        )

    return make
