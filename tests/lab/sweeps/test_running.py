"""A sweep runs what is missing, once; a worker's death costs time and no result."""

import os

import pytest

from leadline.errors import InputError
from leadline.lab.sweeps import CellStore, Job, cell_key, find_executor, run_sweep
from tests.support.sweep_jobs import bundled, counted, job, mortal, raising, square

CELLS = [{"x": x} for x in range(5)]


def executors():
    """Real worker processes, shared by the tests of this file, and none."""
    return {"here": find_executor("here"), "joblib": find_executor("joblib", workers=2)}


@pytest.fixture(params=["here", "joblib"])
def executor(request):
    return executors()[request.param]


def test_results_come_in_the_order_of_the_cells(executor):
    found = run_sweep(job(square), CELLS, executor=executor)
    assert [each["square"] for each in found.results] == [0, 1, 4, 9, 16]
    assert (found.failures, found.ran) == ((), 5)


def test_a_finished_cell_is_never_run_again(tmp_path, executor):
    path, cells = tmp_path / "cells.jsonl", [{"x": x, "folder": str(tmp_path)} for x in range(4)]
    run_sweep(job(counted), cells[:2], store=CellStore(path), executor=executor)
    again = run_sweep(job(counted), cells, store=CellStore(path), executor=executor)
    assert again.ran == 2
    assert [each["square"] for each in again.results] == [0, 1, 4, 9]
    assert [(tmp_path / str(x)).read_text() for x in range(4)] == ["ran\n"] * 4


def test_another_version_of_the_code_is_other_work():
    store = CellStore()
    run_sweep(job(square), CELLS, store=store)
    assert run_sweep(job(square, "2"), CELLS, store=store).ran == 5
    assert run_sweep(job(square, "2"), CELLS, store=store).ran == 0


def test_an_error_is_a_failure_of_its_cell_and_is_not_stored(executor):
    store = CellStore()
    found = run_sweep(job(raising), CELLS, store=store, executor=executor)
    (failure,) = found.failures
    assert failure.settings == {"x": 2}
    assert failure.reason == "ValueError: two is not allowed"
    assert "raising" in failure.traceback
    assert found.results[2] is None
    assert len(store) == 4


def test_a_killed_worker_costs_no_result(tmp_path):
    cells = [{"x": x, "folder": str(tmp_path), "deaths": int(x == 2)} for x in range(6)]
    found = run_sweep(job(mortal), cells, executor=executors()["joblib"])
    assert (tmp_path / "deaths-2").read_text() == "x"
    assert found.failures == ()
    assert [each["square"] for each in found.results] == [0, 1, 4, 9, 16, 25]


@pytest.mark.slow
def test_a_cell_that_always_kills_its_worker_fails_alone(tmp_path):
    cells = [{"x": x, "folder": str(tmp_path), "deaths": 99 * int(x == 2)} for x in range(6)]
    found = run_sweep(job(mortal), cells, executor=executors()["joblib"])
    (failure,) = found.failures
    assert failure.settings["x"] == 2
    assert "died" in failure.reason
    assert [each and each["square"] for each in found.results] == [0, 1, None, 9, 16, 25]


def test_cells_that_are_equal_are_run_once(tmp_path):
    cells = [{"x": 1, "folder": str(tmp_path)}] * 3
    found = run_sweep(job(counted), cells)
    assert [each["square"] for each in found.results] == [1, 1, 1]
    assert (tmp_path / "1").read_text() == "ran\n"


def test_kin_are_done_together_up_to_a_limit():
    work = Job(work=bundled, version="1", kin=lambda settings: settings["x"] < 4, most=4)
    found = run_sweep(work, [{"x": x} for x in range(6)])
    assert [each["with"] for each in found.results] == [4, 4, 4, 4, 2, 2]


def test_a_bundle_that_raises_is_done_cell_by_cell():
    work = Job(work=bundled, version="1", kin=lambda settings: 0, most=3)
    found = run_sweep(work, [{"x": x} for x in range(3)])
    assert [each["with"] for each in found.results] == [1, 1, 1]
    assert found.failures == ()


def test_progress_counts_what_was_stored_as_done():
    store, seen = CellStore(), []
    run_sweep(job(square), CELLS[:3], store=store)
    run_sweep(job(square), CELLS, store=store, progress=lambda done, total, text: seen.append((done, total)))
    assert seen == [(3, 5), (4, 5), (5, 5)]


def test_one_worker_needs_no_process_of_its_own():
    found = run_sweep(job(_own_process), CELLS, executor=find_executor("joblib", workers=1))
    assert {each["pid"] for each in found.results} == {os.getpid()}


def _own_process(settings):
    return {"pid": os.getpid()}


@pytest.mark.parametrize("bad", [{"name": "slurm"}, {"workers": 0}])
def test_an_unknown_executor_is_refused(bad):
    with pytest.raises(InputError, match="expected"):
        find_executor(**bad)


def test_settings_that_are_no_words_or_numbers_are_refused():
    with pytest.raises(InputError, match="numbers, words"):
        cell_key({"model": object()}, "1")
