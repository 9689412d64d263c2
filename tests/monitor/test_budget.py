"""The cost of watching stays within the budget for any cost per measurement."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import leadline
from leadline.monitor.budget import (
    LEVEL_SHARES,
    MAX_CREDIT_STEPS,
    MAX_LOSS_SHARE,
    Level,
    MeasurementSchedule,
)
from leadline.tracer import stats

SLEEP = 5e-3  # seconds


def simulate(
    schedule: MeasurementSchedule, costs: dict[Level, float], steps: int, first: int | None = None
) -> list[Level]:
    """Run a loop of steps of one second with a simulated clock."""
    levels = []
    first = schedule.first_step if first is None else first
    for step in range(first, first + steps):
        level = schedule.level(step)
        levels.append(level)
        for each in LEVEL_SHARES:
            if each <= level:
                schedule.add_cost(each, costs[each])
        schedule.add_step(1.0)
        schedule.add_measurement(step, level)
        if schedule.needs_plan(step, level):
            schedule.plan(step)
    return levels


def costs(row: float, gradients: float, updates: float, trace: float) -> dict[Level, float]:
    return dict(zip(LEVEL_SHARES, (row, gradients, updates, updates, trace), strict=True))


CHEAP = st.floats(1e-6, 0.1)


@settings(max_examples=40)
@given(CHEAP, CHEAP, CHEAP, st.floats(0.01, 20.0), st.floats(0.002, 0.2))
def test_the_cost_is_at_most_the_budget_the_first_trace_and_a_credit(row, gradients, updates, trace, budget):
    schedule, steps = MeasurementSchedule(budget, None), 1500
    what = costs(row, gradients, updates, trace)
    simulate(schedule, what, steps)
    assert (
        schedule.spent <= budget * steps + sum(what.values()) + MAX_CREDIT_STEPS + sum(what.values()) - trace
    )


@settings(max_examples=40)
@given(CHEAP, CHEAP, CHEAP, st.floats(0.01, 3.0), st.floats(0.005, 0.2))
def test_a_trace_beyond_the_first_leaves_no_debt(row, gradients, updates, trace, budget):
    schedule, what = MeasurementSchedule(budget, None), costs(row, gradients, updates, trace)
    for step in range(1500):
        level = simulate(schedule, what, 1, first=step)[0]
        assert level < Level.TRACE or step == 0 or schedule.debt <= 64 * row


def test_cheap_things_are_measured_at_every_step():
    levels = simulate(MeasurementSchedule(0.01, None), costs(1e-5, 1e-5, 1e-5, 0.5), 2000)
    assert all(level >= Level.UPDATES for level in levels)
    assert sum(level == Level.TRACE for level in levels) > 5


def test_early_measurements_are_at_powers_of_two_and_the_next_trace_waits_until_it_is_earned():
    levels = simulate(MeasurementSchedule(0.01, None), costs(1e-5, 1e-3, 1e-2, 0.5), 300)
    looked = [step for step, level in enumerate(levels) if level >= Level.BLOCKS]
    assert looked[:6] == [0, 1, 2, 4, 8, 16]
    traced = [step for step, level in enumerate(levels) if level == Level.TRACE]
    assert traced[0] == 0
    assert 100 <= traced[1] <= 250  # 0.5 twice is earned in 100 steps, and the levels below have their shares


def test_an_expensive_trace_is_taken_first_and_then_rarely():
    levels = simulate(MeasurementSchedule(0.01, None), costs(1e-5, 1e-4, 1e-4, 3.0), 3000)
    traced = [step for step, level in enumerate(levels) if level == Level.TRACE]
    assert traced[0] == 0
    assert 600 <= traced[1] <= 1000


def test_a_fixed_interval_ignores_the_budget():
    levels = simulate(MeasurementSchedule(0.01, 3), costs(1.0, 1.0, 1.0, 50.0), 7)
    assert levels == [5, 4, 4, 5, 4, 4, 5]


def test_with_a_long_interval_blocks_are_measured_ten_times_between_traces():
    levels = simulate(MeasurementSchedule(0.01, 40), costs(1.0, 1.0, 1.0, 50.0), 80)
    assert [step for step, level in enumerate(levels) if level == Level.TRACE] == [0, 40]
    assert [step for step, level in enumerate(levels) if level == Level.BLOCKS][:10] == [*range(4, 40, 4), 44]
    assert set(levels) == {Level.UPDATES, Level.BLOCKS, Level.TRACE}


def test_a_resumed_run_begins_with_a_trace_and_counts_from_there():
    schedule = MeasurementSchedule(0.01, None, first_step=1000)
    levels = simulate(schedule, costs(1e-5, 1e-3, 1e-2, 0.5), 10)
    assert [step for step, level in enumerate(levels) if level >= Level.BLOCKS] == [0, 1, 2, 4, 8]
    assert levels[0] == Level.TRACE


def test_a_pause_for_evaluation_earns_as_much_as_one_step():
    schedule = MeasurementSchedule(0.01, None)
    simulate(schedule, costs(1e-5, 1e-4, 1e-4, 1.0), 20)
    before = schedule.debt
    schedule.add_step(3600.0)
    assert before - schedule.debt == pytest.approx(0.01)  # what a usual step earns


def test_an_urgent_step_is_traced_next():
    schedule = MeasurementSchedule(0.01, None)
    simulate(schedule, costs(1e-5, 1e-4, 1e-4, 3.0), 20)
    assert schedule.level(20) < Level.TRACE
    schedule.trace_next(19)
    assert schedule.level(20) == Level.TRACE


@settings(max_examples=60)
@given(st.floats(1e-3, 1.0), st.floats(1e-6, 1e-5), st.floats(1e-5, 2e-4), st.floats(0.01, 0.1))
def test_losses_and_their_writing_stay_within_their_share_of_the_budget(step_time, timed, writing, share):
    """A simulated loop that records and writes as the schedule says; steps take a millisecond or more."""
    schedule, recorded, next_write = MeasurementSchedule(share, None), 0, 0.0
    schedule.max_level = Level.LOSS
    before, clock = 0.0, 0.0
    for step in range(4000):
        clock += step_time
        schedule.add_step(step_time)
        is_recorded = step >= recorded + schedule.loss_interval
        schedule.add_loss_cost([timed] if is_recorded else [], 0 if is_recorded else 1)
        if is_recorded:
            recorded = step
            if clock >= next_write:
                schedule.add_writing_cost(writing)
                next_write = clock + schedule.hold_seconds
        if step % 64 == 0:
            schedule.plan(step)
        if step == 1000:
            before = schedule.spent
    assert schedule.spent - before <= 1.1 * MAX_LOSS_SHARE * share * 3000 * step_time
    assert schedule.loss_interval == 1 or schedule.spent - before > 0


def test_losses_of_long_steps_are_all_recorded():
    schedule = MeasurementSchedule(0.01, None)
    for step in range(100):
        schedule.add_step(0.1)
        schedule.add_loss_cost([2e-5])
        schedule.add_writing_cost(2e-4)
        schedule.plan(step)
    assert schedule.loss_interval == 1


def test_recording_inside_the_first_pass_is_charged_to_the_budget(monkeypatch):
    """Nobody knows yet what a step takes without it, so it is not seen from outside."""
    slept = []

    def slowly(measure: Any) -> Any:
        def measure_slowly(*args: Any, **kwargs: Any) -> Any:
            slept.append(SLEEP)
            time.sleep(SLEEP)
            return measure(*args, **kwargs)

        return measure_slowly

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def spent_on_one_step() -> float:
        with leadline.watch(model, optimizer) as w:
            w.loss(model(torch.ones(2, 4)).sum()).backward()
            optimizer.step()
            return w._schedule.spent

    spent_on_one_step()  # what is loaded on first use takes longer than any sleep
    for name in ("read_value", "read_gradient"):
        monkeypatch.setattr(stats, name, slowly(getattr(stats, name)))
    assert spent_on_one_step() >= sum(slept) >= 5 * SLEEP
