"""The Ray executor against a fake Ray that finishes in any order, loses workers and fails to import work.

`test_ray.py` tests the same with a real Ray, where the extra is installed.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from leadline.errors import InputError
from leadline.lab.sweeps import find_executor, run_sweep
from leadline.lab.sweeps.executors import MAX_PENDING_PER_CPU
from tests.support.sweep_jobs import job, raising, square


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class Ray:
    """The part of Ray that the executor uses. The last submitted task ends first; tasks in `lost` die once."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self) -> None:
        self.started: list[dict] = []
        self.calls: list = []
        self.max_pending = 0
        self.lost: dict[int, Exception] = {}

    def is_initialized(self) -> bool:
        return bool(self.started)

    def init(self, **options) -> None:
        self.started.append(options)

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def remote(self, *, max_retries: int):
        assert max_retries == 0
        return lambda function: SimpleNamespace(remote=lambda *args: self._submit(function, args))

    def _submit(self, function, args) -> int:
        self.calls.append((function, args))
        return len(self.calls) - 1

    def wait(self, references, *, num_returns):
        self.max_pending = max(self.max_pending, len(references))
        return references[-1:], references[:-1]

    def get(self, reference):
        if reference in self.lost:
            raise self.lost.pop(reference)
        function, args = self.calls[reference]
        return function(*args)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    fake = Ray()
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


CELLS = [{"x": x} for x in range(30)]


def test_results_come_in_the_order_of_the_cells_and_the_cluster_is_not_flooded(ray: Ray):
    sweep = run_sweep(job(square), CELLS, executor=find_executor("ray", workers=2))
    assert [each["square"] for each in sweep.results] == [x * x for x in range(30)]
    assert ray.max_pending == MAX_PENDING_PER_CPU * 2
    assert ray.started == [{"num_cpus": 2, "include_dashboard": False, "log_to_driver": False}]


def test_a_lost_worker_is_tried_again(ray: Ray):
    ray.lost = {3: RayError("the node is gone")}
    sweep = run_sweep(job(square), CELLS[:6], executor=find_executor("ray"))
    assert sweep.failures == ()
    assert len(ray.calls) == 7


def test_an_error_of_the_work_is_a_failure_of_its_cell(ray: Ray):
    sweep = run_sweep(job(raising), CELLS[:4], executor=find_executor("ray"))
    assert [failure.reason for failure in sweep.failures] == ["ValueError: two is not allowed"]


def test_work_that_the_worker_cannot_import_raises(ray: Ray):
    ray.lost = {0: RayTaskError("no module named mine")}
    with pytest.raises(RayTaskError, match="mine"):
        run_sweep(job(square), CELLS[:1], executor=find_executor("ray"))


def test_a_cluster_is_joined_by_its_address_and_only_once(ray: Ray):
    find_executor("ray", address="ray://head:10001")
    find_executor("ray", address="ray://elsewhere:10001")
    assert ray.started == [{"address": "ray://head:10001", "log_to_driver": False}]


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install '\.\[ray\]'"):
        find_executor("ray")
