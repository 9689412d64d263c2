"""A history is bounded, reaches far back all the same, and forgets another future."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.checks._history import (
    FROZEN,
    MAX_RECENT_RECORDINGS,
    MAX_SPACED_RECORDINGS,
    MAX_STEPS,
    MIN_RECORDING_SPACING,
    NOT_MEASURED,
    START_STEPS,
    History,
    Recordings,
    RunLayout,
)
from leadline.checks._statistics import trends
from leadline.records.run import Sample

gaps = st.lists(st.integers(min_value=1, max_value=40), min_size=1, max_size=300)


def filled(steps) -> History:
    return History().extend(
        Sample(step=step, scalars={"loss": float(step)}, vectors={"dead": [float(step)] * 3})
        for step in steps
    )


def steps_of(found: list[int]) -> list[int]:
    steps = [0]
    for gap in found:
        steps.append(steps[-1] + gap)
    return steps


@given(gaps)
def test_only_the_last_recordings_are_stored_and_unchanged(found):
    steps = steps_of(found)
    history = filled(steps)
    assert history.scalars("loss").steps == steps[-MAX_STEPS:]
    assert history.scalars("loss").values == [float(step) for step in steps[-MAX_STEPS:]]
    assert history.recent("dead").steps == steps[-MAX_RECENT_RECORDINGS:]
    assert history.recent("dead").column(1) == [float(step) for step in steps[-MAX_RECENT_RECORDINGS:]]
    spaced = history.spaced("dead").steps
    assert len(spaced) <= MAX_SPACED_RECORDINGS
    assert all(b - a >= MIN_RECORDING_SPACING for a, b in pairwise(spaced))
    assert set(spaced) <= set(steps)


def test_a_long_run_does_not_enlarge_a_history():
    history = filled(range(10 * MAX_STEPS))
    assert len(history.scalars("loss")) == MAX_STEPS
    assert len(history.recent("dead")) == MAX_RECENT_RECORDINGS
    assert len(history.spaced("dead")) == MAX_SPACED_RECORDINGS
    assert history.first_step == 0
    assert history.step == 10 * MAX_STEPS - 1


def test_spaced_recordings_reach_as_far_back_as_the_numbers():
    history = filled(range(2 * MAX_STEPS))
    assert history.spaced("dead").steps[0] <= history.scalars("loss").steps[0] + MIN_RECORDING_SPACING


def test_the_start_of_a_run_stays_when_the_ring_has_moved_on():
    history = filled(range(2 * MAX_STEPS))
    assert list(history.start("loss")) == [float(step) for step in range(START_STEPS)]


def test_a_window_has_the_last_values():
    history = filled(range(100))
    assert history.scalars("loss", 3).values == [97.0, 98.0, 99.0]
    assert history.scalars("loss", 1000).steps == list(range(100))


def test_a_repeated_step_starts_a_new_history():
    history = filled([*range(50), 20])
    assert history.scalars("loss").steps == [20]
    assert (history.first_step, history.step) == (20, 20)


def test_a_metric_that_was_never_measured_is_empty_and_not_zero():
    history = filled(range(3))
    assert history.latest("grad_norm") is None
    assert len(history.scalars("grad_norm")) == len(history.recent("grad_norm")) == 0
    assert not history.has("grad_norm")


def test_nan_is_stored_as_measured():
    history = History().extend([Sample(step=0, scalars={"loss": math.nan})])
    assert math.isnan(history.latest("loss"))
    assert list(history.start("loss")) == []


def test_recordings_on_an_earlier_axis_move_to_the_new_one_by_name():
    history = History(RunLayout(parameters=("a", "b"), blocks=("x", "x", "y")))
    history.add(Sample(step=0, scalars={}, vectors={"grad_norm": [1.0, 2.0], "dead": [0.1, 0.2, 0.3]}))
    history.set_layout(RunLayout(parameters=("b", "new", "a"), blocks=("x", "w", "x", "y")))
    assert [*history.recent("grad_norm").rows[0]] == [2.0, FROZEN, 1.0]
    assert [*history.spaced("dead").rows[0]] == pytest.approx([0.1, NOT_MEASURED, 0.2, 0.3])


def test_recordings_that_were_not_measured_are_not_part_of_a_trend():
    rows = [
        [0.5, NOT_MEASURED if step % 2 else 1.0 + step, NOT_MEASURED if step < 10 else 0.0]
        for step in range(16)
    ]
    found = trends(Recordings(steps=list(range(16)), rows=rows))
    assert [(each.index, each.first, each.last) for each in found] == [(0, 0.5, 0.5), (1, 3.0, 13.0)]
