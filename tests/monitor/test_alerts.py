"""The tracker raises once, clears once, and never floods."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import leadline
from leadline.checks import run_checks
from leadline.checks._check import Check, Symptom, check
from leadline.checks._examples import constant, scalar_history
from leadline.checks._history import History
from leadline.monitor.alerts import RESET_QUIET_PERIODS, AlertTracker
from leadline.monitor.arguments import merge_alerts
from leadline.records.run import Alert, Sample

QUIET = scalar_history(1, loss=constant(1.0))
CALM = 8
SEVERITIES = {1.0: "info", 2.0: "warning", 3.0: "error"}


def toy(code: str = "T899", **settings) -> Check:
    """Sick where the number "ill" is above zero; how much says how severe."""

    @check(
        code=code,
        name="toy",
        since="0.1",
        needs=("ill",),
        sick=QUIET,
        healthy=QUIET,
        **{"calm": CALM} | settings,
    )
    def look(history: History):
        """Toy."""
        level = history.latest("ill")
        if level:
            yield Symptom(
                severity=SEVERITIES[level],
                where="here",
                message="ill",
                action="Act.",
                evidence={},
                since=history.step or 0,
            )

    return look


def tell(
    levels, *alarms: Check, tracker: AlertTracker | None = None, history: History | None = None
) -> list[Alert]:
    tracker, history = tracker or AlertTracker(alarms or (toy(),)), history or History()
    said = []
    for step, level in enumerate(levels):
        history.add(Sample(step=step, scalars={"ill": float(level)}))
        said += tracker.update(history)
    return said


@given(st.lists(st.sampled_from([0, 0, 1, 2, 3]), max_size=200))
def test_an_alert_is_never_raised_twice_without_a_clear_between(levels):
    states = [alert.state for alert in tell(levels)]
    assert states == ["raised", "cleared"] * (len(states) // 2) + ["raised"] * (len(states) % 2)


@given(st.lists(st.booleans(), max_size=200), st.permutations([0, 1, 2]))
def test_the_order_of_the_run_checks_does_not_matter(levels, order):
    alarms = [toy("T897", explains=("T898",)), toy("T898", confirm=2), toy("T899", every=3)]
    said = tell(levels, *alarms)
    again = tell(levels, *(alarms[index] for index in order))
    assert sorted((a.step, a.code, a.state) for a in said) == sorted((a.step, a.code, a.state) for a in again)


def test_a_lasting_problem_is_raised_once():
    assert [alert.state for alert in tell([1] * 500)] == ["raised"]


def test_a_problem_that_stops_is_cleared_after_its_quiet_period():
    said = tell([0, 1, 1] + [0] * 100)
    assert [(alert.state, alert.step) for alert in said] == [("raised", 1), ("cleared", 2 + CALM)]


def test_a_short_pause_does_not_clear_an_alert():
    assert len(tell(([1] + [0] * (CALM - 1)) * 20)) == 1


@pytest.mark.parametrize("period", [CALM + 2, 3 * CALM, 10 * CALM])
def test_a_periodic_problem_is_raised_a_few_times_and_then_stays_active(period):
    raised = [alert for alert in tell(([1] + [0] * (period - 1)) * 60) if alert.state == "raised"]
    assert 1 < len(raised) <= 2 + math.log2(period / CALM)


def test_a_problem_that_returns_after_a_long_time_is_raised_each_time():
    period = RESET_QUIET_PERIODS * CALM + CALM
    raised = [alert for alert in tell(([1] + [0] * (period - 1)) * 4) if alert.state == "raised"]
    assert len(raised) == 4


def test_an_escalation_is_raised_again_and_an_improvement_is_not():
    said = tell([1, 1, 3, 3, 1, 1])
    assert [(alert.state, alert.severity) for alert in said] == [
        ("raised", "info"),
        ("cleared", "info"),
        ("raised", "error"),
    ]


def test_a_run_check_that_needs_confirmation_looks_twice():
    assert tell([0, 1, 0, 1, 0, 1], toy(confirm=2)) == []
    assert [alert.step for alert in tell([0, 1, 1, 1], toy(confirm=2))] == [2]


def test_a_run_check_runs_at_its_interval():
    looked = []
    each = toy(every=5)
    watched = Check(
        code=each.code, name=each.name, since=each.since, needs=each.needs, sick=QUIET, healthy=QUIET, every=5,
        look=lambda history: looked.append(history.step) or (),
    )  # fmt: skip
    tell([0] * 12, watched)
    assert looked == [0, 5, 10]


def test_a_consequence_is_not_raised_while_its_cause_is_active():
    cause, effect = toy("T897", explains=("T898",)), toy("T898")
    assert {alert.code for alert in tell([1] * 20, effect, cause)} == {"T897"}
    assert {alert.code for alert in tell([1] * 20, effect)} == {"T898"}


def test_a_run_that_goes_back_clears_its_alerts_and_starts_again():
    tracker, history = AlertTracker([toy()]), History()
    tell([1] * 5, tracker=tracker, history=history)
    history.add(Sample(step=2, scalars={"ill": 0.0}))
    assert [alert.state for alert in tracker.update(history)] == ["cleared"]
    assert tracker.active == ()


def test_a_second_update_at_the_same_step_raises_nothing():
    tracker, history = AlertTracker([toy()]), History()
    history.add(Sample(step=0, scalars={"ill": 1.0}))
    assert len(tracker.update(history)) == 1
    assert tracker.update(history) == []
    assert [alert.code for alert in tracker.active] == ["T899"]


def test_alerts_name_the_rank_they_come_from():
    assert [alert.rank for alert in tell([1], tracker=AlertTracker([toy()], rank=3))] == [3]


def test_active_alerts_are_listed_worst_first():
    tracker, history = AlertTracker(run_checks()), History()
    for step in range(60):
        history.add(Sample(step=step, scalars={"loss": 1.0 if step < 55 else math.nan, "grad_norm": 0.5}))
        tracker.update(history)
    assert [alert.code for alert in tracker.active] == ["T814", "T810"]


def test_an_escalated_alert_dates_from_its_beginning():
    """The toy's symptom is always of today."""
    said = tell([2, 2, 2, 3])
    assert [(each.state, each.severity, each.since) for each in said] == [
        ("raised", "warning", 0),
        ("cleared", "warning", 0),
        ("raised", "error", 0),
    ]


def test_the_last_update_needs_no_confirmation():
    def states(*, last):
        tracker = AlertTracker([toy(confirm=2)])
        return [
            each.state
            for each in tracker.update(History().extend([Sample(step=9, scalars={"ill": 1.0})]), last=last)
        ]

    assert states(last=False) == []
    assert states(last=True) == ["raised"]


def test_a_symptom_from_elsewhere_is_raised_once_and_cleared_normally():
    tracker = AlertTracker([toy(confirm=2)])
    symptom = Symptom(severity="error", where="there", message="seen", action="Act.", evidence={}, since=5)
    assert [each.message for each in tracker.add_symptom("T899", symptom)] == ["seen"]
    assert tracker.add_symptom("T899", symptom) == []
    history = History().extend([Sample(step=5 + CALM, scalars={"ill": 0.0})])
    assert [each.state for each in tracker.update(history)] == ["cleared"]


def test_an_alert_that_was_raised_grew_and_is_over_is_listed_once():
    def change(code: str, state: str, step: int, severity: str = "warning") -> Alert:
        return Alert(code=code, name="n", severity=severity, message="m", since=1, step=step, state=state)

    changes = [
        change("T801", "raised", 5),
        change("T803", "raised", 6),
        change("T801", "cleared", 8),
        change("T801", "raised", 8, "error"),
        change("T801", "cleared", 20),
        change("T801", "raised", 90),
    ]
    assert [(each.code, each.step, each.severity, each.state) for each in merge_alerts(changes)] == [
        ("T801", 8, "error", "cleared"),
        ("T803", 6, "warning", "raised"),
        ("T801", 90, "warning", "raised"),
    ]


def test_a_finding_that_trial_steps_refuted_raises_no_alert_in_the_first_steps():
    torch.manual_seed(0)
    layers = [layer for _ in range(30) for layer in (nn.Linear(16, 16), nn.Sigmoid())]
    model = nn.Sequential(*layers)
    report = leadline.check(model, torch.randn(8, 16), loss=lambda output: output.square().mean())
    code = next(each.code for each in report.findings if each.severity != "info" and not each.explained_by)
    with leadline.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), on_alert=lambda alert: None) as w:
        w.refute({code}, 10)
        assert code not in [each.code for each in w._journal.add_report(5, report)]
        assert code in [each.code for each in w._journal.add_report(10, report)]
