"""A sweep runs each missing cell once, and the death of a worker loses no result."""

import os

import pytest

from leadline.errors import InputError
from leadline.lab.sweeps import CellStore, Job, cell_key, find_executor, run_sweep
from tests.support.sweep_jobs import bundled, counted, job, mortal, raising, square

CELLS = [{"x": x} for x in range(5)]


def executors():
    """Return the executors without and with worker processes."""
    return {"here": find_executor("here"), "joblib": find_executor("joblib", workers=2)}


@pytest.fixture(params=["here", "joblib"])
def executor(request):
    return executors()[request.param]


def test_results_come_in_the_order_of_the_cells(executor):
    sweep = run_sweep(job(square), CELLS, executor=executor)
    assert [each["square"] for each in sweep.results] == [0, 1, 4, 9, 16]
    assert (sweep.failures, sweep.ran) == ((), 5)


def test_a_finished_cell_is_never_run_again(tmp_path, executor):
    path, cells = tmp_path / "cells.jsonl", [{"x": x, "folder": str(tmp_path)} for x in range(4)]
    run_sweep(job(counted), cells[:2], store=CellStore(path), executor=executor)
    again = run_sweep(job(counted), cells, store=CellStore(path), executor=executor)
    assert again.ran == 2
    assert [each["square"] for each in again.results] == [0, 1, 4, 9]
    assert [(tmp_path / str(x)).read_text() for x in range(4)] == ["ran\n"] * 4


def test_cells_of_another_version_are_run_again():
    store = CellStore()
    run_sweep(job(square), CELLS, store=store)
    assert run_sweep(job(square, "2"), CELLS, store=store).ran == 5
    assert run_sweep(job(square, "2"), CELLS, store=store).ran == 0


def test_an_error_is_a_failure_of_its_cell_and_is_not_stored(executor):
    store = CellStore()
    sweep = run_sweep(job(raising), CELLS, store=store, executor=executor)
    (failure,) = sweep.failures
    assert failure.settings == {"x": 2}
    assert failure.reason == "ValueError: two is not allowed"
    assert "raising" in failure.traceback
    assert sweep.results[2] is None
    assert len(store) == 4


def test_a_killed_worker_loses_no_result(tmp_path):
    cells = [{"x": x, "folder": str(tmp_path), "deaths": int(x == 2)} for x in range(6)]
    sweep = run_sweep(job(mortal), cells, executor=executors()["joblib"])
    assert (tmp_path / "deaths-2").read_text() == "x"
    assert sweep.failures == ()
    assert [each["square"] for each in sweep.results] == [0, 1, 4, 9, 16, 25]


@pytest.mark.slow
def test_a_cell_that_always_kills_its_worker_fails_alone(tmp_path):
    cells = [{"x": x, "folder": str(tmp_path), "deaths": 99 * int(x == 2)} for x in range(6)]
    sweep = run_sweep(job(mortal), cells, executor=executors()["joblib"])
    (failure,) = sweep.failures
    assert failure.settings["x"] == 2
    assert "died" in failure.reason
    assert [each and each["square"] for each in sweep.results] == [0, 1, None, 9, 16, 25]


def test_equal_cells_are_run_once(tmp_path):
    cells = [{"x": 1, "folder": str(tmp_path)}] * 3
    sweep = run_sweep(job(counted), cells)
    assert [each["square"] for each in sweep.results] == [1, 1, 1]
    assert (tmp_path / "1").read_text() == "ran\n"


def test_cells_with_one_bundle_key_run_together_up_to_the_limit():
    work = Job(work=bundled, version="1", bundle_key=lambda settings: settings["x"] < 4, max_bundle=4)
    sweep = run_sweep(work, [{"x": x} for x in range(6)])
    assert [each["with"] for each in sweep.results] == [4, 4, 4, 4, 2, 2]


def test_a_bundle_that_raises_is_run_cell_by_cell():
    work = Job(work=bundled, version="1", bundle_key=lambda settings: 0, max_bundle=3)
    sweep = run_sweep(work, [{"x": x} for x in range(3)])
    assert [each["with"] for each in sweep.results] == [1, 1, 1]
    assert sweep.failures == ()


def test_progress_counts_stored_cells_as_done():
    store, calls = CellStore(), []
    run_sweep(job(square), CELLS[:3], store=store)
    run_sweep(job(square), CELLS, store=store, progress=lambda done, total, text: calls.append((done, total)))
    assert calls == [(3, 5), (4, 5), (5, 5)]


def test_a_single_worker_runs_in_this_process():
    sweep = run_sweep(job(_own_process), CELLS, executor=find_executor("joblib", workers=1))
    assert {each["pid"] for each in sweep.results} == {os.getpid()}


def _own_process(settings):
    return {"pid": os.getpid()}


@pytest.mark.parametrize("bad", [{"name": "slurm"}, {"workers": 0}])
def test_an_unknown_executor_is_refused(bad):
    with pytest.raises(InputError, match="expected"):
        find_executor(**bad)


def test_settings_that_json_cannot_hold_are_refused():
    with pytest.raises(InputError, match="numbers, strings"):
        cell_key({"model": object()}, "1")
