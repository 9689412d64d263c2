"""Numbers of many steps, stored at once, are what they would be if each step had been stored by itself."""

from __future__ import annotations

import math

import pytest

from leadline.checks._history import History
from leadline.monitor.runfile import Run, Writer
from leadline.monitor.runfile.queue import DroppedSteps, ScalarColumns, WriteQueue
from leadline.monitor.runfile.store import ROWS_PER_INSERT
from leadline.records.run import RunInfo, Sample

INFO = RunInfo(model="m")


def rows(first: int, count: int) -> ScalarColumns:
    """Losses, of which every third is missing and one is NaN, and a rate."""
    steps = tuple(range(first, first + count))
    losses = tuple(None if step % 3 == 0 else math.nan if step == first + 1 else step / 7 for step in steps)
    return ScalarColumns(steps, tuple(map(float, steps)), {"loss": losses, "lr": (0.1,) * count})


def content(path) -> tuple:
    with Run(path) as run:
        numbers = {
            name: (run.scalars(name)[0], list(map(repr, run.scalars(name)[1]))) for name in ("loss", "lr")
        }
        return run.times(), numbers, [event.kind for event in run.events()], run.cursor


@pytest.mark.parametrize("count", [1, ROWS_PER_INSERT - 1, ROWS_PER_INSERT, 3 * ROWS_PER_INSERT + 5])
def test_steps_stored_together_equal_steps_stored_one_by_one(tmp_path, count):
    together, apart = tmp_path / "together.leadline", tmp_path / "apart.leadline"
    with Writer(together, INFO) as writer:
        writer.put(0, {"loss": 9.0})
        writer.rows(rows(1, count))
    with Writer(apart, INFO) as writer:
        writer.put(0, {"loss": 9.0})
        for put in rows(1, count).split():
            writer.put(put.step, put.scalars, when=put.time)
    ours, theirs = content(together), content(apart)
    assert ours[1:] == theirs[1:]
    assert [*ours[0].values()][1:] == [*theirs[0].values()][1:] == list(map(float, range(1, count + 1)))


def test_steps_that_a_resumed_run_repeats_replace_the_old_ones(tmp_path):
    path = tmp_path / "run.leadline"
    with Writer(path, INFO) as writer:
        writer.put(0, {"loss": 9.0})
        writer.rows(rows(1, 200))
    with Writer(path, INFO) as writer:
        writer.rows(ScalarColumns((100, 101), (0.0, 1.0), {"loss": (5.0, 6.0)}))
        writer.rows(ScalarColumns((201,), (2.0,), {"loss": (7.0,)}))
    with Run(path) as run:
        assert run.scalars("loss", since=100, until=102) == ([100, 101], [5.0, 6.0])
        assert run.scalars("lr", since=100, until=102) == ([], [])
        assert run.scalars("loss", since=201) == ([201], [7.0])
        assert "resume" in [event.kind for event in run.events()]


def test_dropped_steps_are_counted_one_by_one():
    queue = WriteQueue(max_bytes=rows(0, 10).size)
    queue.add(rows(0, 10))
    queue.add(rows(10, 5))
    assert queue.take().dropped == DroppedSteps(10, 0, 9)


def test_a_history_of_columns_equals_that_of_single_steps():
    together, apart = History(), History()
    found = rows(0, 50)
    together.add_rows(found.steps, found.scalars)
    apart.extend(Sample(step=put.step, scalars=put.scalars) for put in found.split())
    assert repr(together.scalars("loss")) == repr(apart.scalars("loss"))
    assert (together.step, together.first_step) == (apart.step, apart.first_step) == (49, 0)
    together.add_rows((10,), {"loss": (1.0,)})
    assert together.scalars("loss").steps == [10]  # a run that went back
