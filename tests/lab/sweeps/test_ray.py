"""The same sweep on a real local Ray. Needs the extra `ray`: run with `pytest -m ray`."""

import pytest

from leadline.lab.sweeps import CellStore, find_executor, run_sweep
from tests.support.sweep_jobs import counted, job, mortal, raising, square

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),  # Ray's own warnings, which come with its versions
]


@pytest.fixture(scope="module")
def executor():
    import ray

    yield find_executor("ray", workers=2)
    ray.shutdown()


def test_results_come_in_the_order_of_the_cells(executor):
    cells = [{"x": x} for x in range(20)]
    sweep = run_sweep(job(square), cells, executor=executor)
    assert [each["square"] for each in sweep.results] == [x * x for x in range(20)]


def test_a_killed_worker_is_retried_and_finished_cells_are_not_run_again(tmp_path, executor):
    cells = [{"x": x, "folder": str(tmp_path), "deaths": int(x in (2, 3))} for x in range(6)]
    store = CellStore(tmp_path / "cells.jsonl")
    sweep = run_sweep(job(mortal), cells, store=store, executor=executor)
    assert sweep.failures == ()
    assert [each["square"] for each in sweep.results] == [0, 1, 4, 9, 16, 25]
    assert [(tmp_path / str(x)).read_text() for x in range(6)] == ["ran\n"] * 6
    assert run_sweep(job(counted), cells, store=CellStore(store.path), executor=executor).ran == 0


def test_a_cell_that_always_kills_its_worker_fails_alone(tmp_path, executor):
    cells = [{"x": x, "folder": str(tmp_path), "deaths": 99 * int(x == 1)} for x in range(3)]
    sweep = run_sweep(job(mortal), cells, executor=executor)
    assert [failure.settings["x"] for failure in sweep.failures] == [1]
    assert [each and each["square"] for each in sweep.results] == [0, None, 4]


def test_an_error_is_a_failure_of_its_cell(executor):
    sweep = run_sweep(job(raising), [{"x": x} for x in range(4)], executor=executor)
    assert [failure.reason for failure in sweep.failures] == ["ValueError: two is not allowed"]


def test_a_running_cluster_is_joined_by_its_address(executor):
    """Join the cluster of this module from another process, as a user would."""
    import os
    import subprocess
    import sys

    import ray

    address = ray.get_runtime_context().gcs_address
    code = (
        "from leadline.lab.sweeps import find_executor, run_sweep\n"
        "from tests.support.sweep_jobs import job, square\n"
        f"found = run_sweep(job(square), [{{'x': 3}}], executor=find_executor('ray', address={address!r}))\n"
        "assert found.results == ({'square': 9},), found\n"
    )
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
