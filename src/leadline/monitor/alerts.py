r"""The state of each alert: raised once per cause, cleared once, never a flood.

A run check that finds a symptom in `confirm` looks in a row raises an alert. The alert stays active until no look has
found the symptom for `calm` steps; a symptom that returns within `calm` steps was never gone. Each time it returns
later than that, the quiet period that clears it doubles. So a problem with period $p$ is reported at most
$2 + \log_2(p/\mathrm{calm})$ times and then stays one active alert; after `RESET_QUIET_PERIODS` quiet periods the
doubling starts again. While an alert is active, the checks that it explains raise none. A symptom that grows more
severe is reported again: its alert is cleared and raised with the step at which it began.
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

# Heuristic: quiet periods after which the doubling starts again; a spike every thousand steps is news each time.
RESET_QUIET_PERIODS = 16


@dataclass(slots=True)
class AlertState:
    """What is known of the alert of one run check."""

    check: Check
    last_look: int | None = None
    finds_in_a_row: int = 0
    last_find: int | None = None
    """The last step at which the symptom was found while the alert was active."""
    active: Alert | None = None
    doublings: int = 0

    @property
    def calm(self) -> int:
        return self.check.calm << self.doublings


class AlertTracker:
    """Runs the run checks on a growing history, and raises and clears their alerts."""

    def __init__(self, checks: Iterable[Check], *, rank: int = 0) -> None:
        self.rank = rank
        self._states = [AlertState(each) for each in checks]
        self._step: int | None = None

    @property
    def active(self) -> tuple[Alert, ...]:
        """Alerts that were raised and not cleared, the most severe first."""
        alerts = [each.active for each in self._states if each.active is not None]
        return tuple(sorted(alerts, key=lambda alert: (-severity_rank(alert.severity), alert.code)))

    def update(self, history: History, *, last: bool = False) -> list[Alert]:
        """Return the alerts raised and cleared at the history's last step.

        The `last` look of a run needs no confirmation, because no later look could give it.
        """
        if history.step is None or history.step == self._step:
            return []
        went_back = self._step is not None and history.step < self._step
        alerts = self._restart(history.step) if went_back else []
        self._step = step = history.step
        due = [each for each in self._states if _is_due(each, history)]
        symptoms = {each.check.code: _worst(each.check.look(history)) for each in due}
        explained = self._explained([code for code, symptom in symptoms.items() if symptom])
        for each in due:
            each.finds_in_a_row += each.check.confirm if last else 0
            is_explained = each.check.code in explained
            alerts += self._judge(each, symptoms[each.check.code], step, is_explained=is_explained)
        history.last_check_step = step
        return alerts

    def add_symptom(self, code: str, symptom: Symptom) -> list[Alert]:
        """Return the alerts of a symptom found outside the history, as if the check with this code was sure of it."""
        state = next(each for each in self._states if each.check.code == code)
        state.finds_in_a_row += state.check.confirm
        return self._judge(state, symptom, symptom.since, is_explained=False)

    def _judge(
        self, state: AlertState, symptom: Symptom | None, step: int, *, is_explained: bool
    ) -> list[Alert]:
        state.last_look = step
        state.finds_in_a_row = state.finds_in_a_row + 1 if symptom else 0
        if state.active is not None:
            return self._judge_active(state, state.active, symptom, step)
        if symptom is None or is_explained or state.finds_in_a_row < state.check.confirm:
            return []
        return [self._raise(state, symptom, step)]

    def _judge_active(
        self, state: AlertState, alert: Alert, symptom: Symptom | None, step: int
    ) -> list[Alert]:
        if symptom is None:
            is_over = step - (state.last_find or alert.step) >= state.calm
            return [self._clear(state, alert, step)] if is_over else []
        state.last_find = step
        if -severity_rank(symptom.severity) < -severity_rank(alert.severity):
            escalated = dataclasses.replace(symptom, since=min(symptom.since, alert.since))
            return [self._clear(state, alert, step), self._raise(state, escalated, step)]
        return []

    def _raise(self, state: AlertState, symptom: Symptom, step: int) -> Alert:
        if state.last_find is not None:
            quiet = step - state.last_find
            is_new = quiet >= RESET_QUIET_PERIODS * state.calm
            state.doublings = 0 if is_new else state.doublings + (quiet > 0)
        state.last_find = step
        state.active = state.check.alert(symptom, step=step, rank=self.rank)
        return state.active

    def _clear(self, state: AlertState, alert: Alert, step: int) -> Alert:
        state.active = None
        return msgspec.structs.replace(alert, step=step, state="cleared")

    def _explained(self, codes: Sequence[str]) -> set[str]:
        """Return the codes that are consequences of active alerts or of symptoms found now."""
        causes = {each.check.code for each in self._states if each.active} | set(codes)
        return {code for each in self._states if each.check.code in causes for code in each.check.explains}

    def _restart(self, step: int) -> list[Alert]:
        """Clear all alerts after the run went back to an earlier step, where none of them is known to hold."""
        cleared = [self._clear(each, each.active, step) for each in self._states if each.active]
        self._states = [AlertState(each.check) for each in self._states]
        return cleared


def _is_due(state: AlertState, history: History) -> bool:
    assert history.step is not None
    if state.last_look is not None and history.step - state.last_look < state.check.every:
        return False
    return any(history.has(name) for name in state.check.needs)


def _worst(symptoms: Iterable[Symptom]) -> Symptom | None:
    return min(symptoms, key=lambda each: -severity_rank(each.severity), default=None)
