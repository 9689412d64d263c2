r"""The desk alarms report to: one alert for a cause, raised once, cleared once, never a flood.

An alarm that is seen in `confirm` looks in a row is raised; its alert stands until no look has seen it for `calm`
steps. One that comes back within `calm` steps of quiet was never gone. Each time it comes back later than that, the
quiet it must keep doubles, so that a sickness with period $p$ is told at most $2 + \log_2(p/\mathrm{calm})$ times and
then stands as one alert; after `FORGIVE` times its quiet it starts afresh. While an alert stands, alarms that it
explains are not raised. A symptom that grows more severe is said again: its alert is cleared, and raised anew
with the step since which it has stood.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from leadline.checks._check import Check, Symptom
from leadline.checks._history import History
from leadline.records import severity_rank
from leadline.records.run import Alert

FORGIVE = 16  # times the quiet it had to keep; ours: a spike every thousand steps is news each time


@dataclass(slots=True)
class Case:
    """What the desk remembers of one alarm."""

    alarm: Check
    looked: int | None = None
    seen_in_a_row: int = 0
    seen: int | None = None
    """The last step at which it was seen while its alert stood."""
    standing: Alert | None = None
    doublings: int = 0

    @property
    def calm(self) -> int:
        return self.alarm.calm << self.doublings


class Desk:
    """Asks alarms about a history as it grows."""

    def __init__(self, alarms: Iterable[Check], *, rank: int = 0) -> None:
        self.rank = rank
        self._cases = [Case(each) for each in alarms]
        self._step: int | None = None

    @property
    def standing(self) -> tuple[Alert, ...]:
        """Alerts that were raised and not cleared, the worst first."""
        found = [each.standing for each in self._cases if each.standing is not None]
        return tuple(sorted(found, key=lambda alert: (-severity_rank(alert.severity), alert.code)))

    def ask(self, history: History, *, last: bool = False) -> list[Alert]:
        """What changed: alerts raised and cleared at the history's last step.

        The `last` look of a run needs no confirmation, for there is none to wait for.
        """
        if history.step is None or history.step == self._step:
            return []
        went_back = self._step is not None and history.step < self._step
        said = self._restart(history.step) if went_back else []
        self._step = step = history.step
        due = [each for each in self._cases if _is_due(each, history)]
        seen = {each.alarm.code: _worst(each.alarm.look(history)) for each in due}
        explained = self._explained([code for code, symptom in seen.items() if symptom])
        for each in due:
            symptom = seen[each.alarm.code]
            each.seen_in_a_row += each.alarm.confirm if last else 0
            said += self._judge(each, symptom, step, silent=each.alarm.code in explained)
        history.last_check_step = step
        return said

    def tell(self, code: str, symptom: Symptom) -> list[Alert]:
        """What was seen elsewhere than in the history, as if the alarm of this code had seen it, and is sure of it."""
        case = next(each for each in self._cases if each.alarm.code == code)
        case.seen_in_a_row += case.alarm.confirm
        return self._judge(case, symptom, symptom.since, silent=False)

    def _judge(self, case: Case, symptom: Symptom | None, step: int, *, silent: bool) -> list[Alert]:
        case.looked = step
        case.seen_in_a_row = case.seen_in_a_row + 1 if symptom else 0
        if case.standing is not None:
            return self._while_standing(case, case.standing, symptom, step)
        if symptom is None or silent or case.seen_in_a_row < case.alarm.confirm:
            return []
        return [self._raise(case, symptom, step)]

    def _while_standing(self, case: Case, alert: Alert, symptom: Symptom | None, step: int) -> list[Alert]:
        if symptom is None:
            return [self._clear(case, alert, step)] if step - (case.seen or alert.step) >= case.calm else []
        case.seen = step
        if -severity_rank(symptom.severity) < -severity_rank(alert.severity):
            worse = dataclasses.replace(symptom, since=min(symptom.since, alert.since))
            return [self._clear(case, alert, step), self._raise(case, worse, step)]
        return []

    def _raise(self, case: Case, symptom: Symptom, step: int) -> Alert:
        if case.seen is not None:
            quiet = step - case.seen
            case.doublings = 0 if quiet >= FORGIVE * case.calm else case.doublings + (quiet > 0)
        case.seen = step
        case.standing = case.alarm.alert(symptom, step=step, rank=self.rank)
        return case.standing

    def _clear(self, case: Case, alert: Alert, step: int) -> Alert:
        case.standing = None
        return msgspec.structs.replace(alert, step=step, state="cleared")

    def _explained(self, seen: Sequence[str]) -> set[str]:
        """Codes that are consequences of alarms that stand or are seen now."""
        speak = {each.alarm.code for each in self._cases if each.standing} | set(seen)
        return {code for each in self._cases if each.alarm.code in speak for code in each.alarm.explains}

    def _restart(self, step: int) -> list[Alert]:
        """The run went back: nothing that stood is known to stand."""
        cleared = [self._clear(each, each.standing, step) for each in self._cases if each.standing]
        self._cases = [Case(each.alarm) for each in self._cases]
        return cleared


def _is_due(case: Case, history: History) -> bool:
    assert history.step is not None
    if case.looked is not None and history.step - case.looked < case.alarm.every:
        return False
    return any(history.has(name) for name in case.alarm.needs)


def _worst(symptoms: Iterable[Symptom]) -> Symptom | None:
    return min(symptoms, key=lambda each: -severity_rank(each.severity), default=None)
