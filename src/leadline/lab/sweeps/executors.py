"""Executors that run a sweep in this process, in worker processes, or on Ray."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from leadline.errors import InputError, install_extra
from leadline.lab.sweeps.cells import (
    Bundle,
    Executor,
    Outcome,
    Work,
    WorkerDeath,
    run_bundle,
    run_numbered_bundle,
)


def in_process(work: Work, bundles: Sequence[Bundle]) -> Iterator[tuple[int, Outcome]]:
    """Run all bundles in this process; a crash ends the sweep."""
    for index, bundle in enumerate(bundles):
        yield index, run_bundle(work, bundle)


# Worker processes on this machine (joblib's loky).

# Derived: with one process, joblib would run the work in this process, and a crash would end the sweep.
MIN_PROCESSES = 2


def on_joblib(workers: int) -> Executor:
    """Return an executor with this many processes.

    If one dies, all bundles that were running count as dead, and the rest continues in new processes.
    """
    joblib = _joblib()

    def run(work: Work, bundles: Sequence[Bundle]) -> Iterator[tuple[int, Outcome]]:
        waiting = list(range(len(bundles)))
        while waiting:
            started: list[int] = []
            ended: set[int] = set()
            tasks = _tasks(joblib, work, bundles, waiting, started)
            pool = joblib.Parallel(
                n_jobs=max(workers, MIN_PROCESSES),
                pre_dispatch="n_jobs",
                batch_size=1,
                return_as="generator_unordered",
            )
            try:
                for index, outcome in pool(tasks):
                    ended.add(index)
                    yield index, outcome
            except _broken_pool_error() as error:
                for index in [each for each in started if each not in ended]:
                    ended.add(index)
                    yield index, WorkerDeath(reason=type(error).__name__)
            waiting = [index for index in waiting if index not in ended]

    return run


def _tasks(
    joblib: Any, work: Work, bundles: Sequence[Bundle], waiting: Sequence[int], started: list[int]
) -> Iterator[Any]:
    """Yield tasks for joblib and record their indices: a death can affect every task that joblib has taken."""
    for index in waiting:
        started.append(index)
        yield joblib.delayed(run_numbered_bundle)(work, index, bundles[index])


def _broken_pool_error() -> type[Exception]:
    """Return the error that loky raises when a worker process is gone."""
    error: type[Exception] = import_module("joblib.externals.loky.process_executor").BrokenProcessPool
    return error


def _joblib() -> Any:
    try:
        return import_module("joblib")
    except ImportError:
        raise InputError(
            expected="joblib, for worker processes",
            got="an environment without it",
            fix=f"{install_extra('lab')}, or use the executor 'here', which runs in this process",
        ) from None


# Ray, on this machine or on a running cluster.

# Heuristic: bundles submitted per processor, so that none is idle and a long sweep does not flood the cluster.
MAX_PENDING_PER_CPU = 4


def on_ray(address: str | None = None, workers: int | None = None) -> Executor:
    """Return an executor on the cluster at `address` ("auto", "ray://host:10001"), or on a local one with `workers`."""
    ray = _ray()
    if not ray.is_initialized():
        _start(ray, address, workers)

    def run(work: Work, bundles: Sequence[Bundle]) -> Iterator[tuple[int, Outcome]]:
        remote = ray.remote(max_retries=0)(
            run_bundle
        )  # deaths are counted and retried by the sweep, in one place
        ahead = MAX_PENDING_PER_CPU * max(int(ray.cluster_resources().get("CPU", 1)), 1)
        pending: dict[Any, int] = {}
        for index, bundle in enumerate(bundles):
            if len(pending) >= ahead:
                yield from _next(ray, pending)
            pending[remote.remote(work, bundle)] = index
        while pending:
            yield from _next(ray, pending)

    return run


def _start(ray: Any, address: str | None, workers: int | None) -> None:
    """Connect to the cluster, or start a local one with Ray's usage statistics turned off."""
    if address is not None:
        ray.init(address=address, log_to_driver=False)
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)


def _next(ray: Any, pending: dict[Any, int]) -> Iterator[tuple[int, Outcome]]:
    """Wait for at least one bundle and yield the finished ones."""
    ended, _ = ray.wait(list(pending), num_returns=1)
    for reference in ended:
        yield pending.pop(reference), _outcome(ray, reference)


def _outcome(ray: Any, reference: Any) -> Outcome:
    """Return the outcome of a task. The worker catches errors of the work; Ray raises for a lost worker."""
    try:
        outcome: Outcome = ray.get(reference)
    except ray.exceptions.RayTaskError:  # the worker could not import the work
        raise
    except ray.exceptions.RayError as error:
        return WorkerDeath(reason=type(error).__name__)
    return outcome


def _ray() -> Any:
    try:
        return import_module("ray")
    except ImportError:
        raise InputError(
            expected="ray, for sweeps on a cluster",
            got="an environment without it",
            fix=f"{install_extra('ray')}, or use the executor 'joblib', which starts worker processes",
        ) from None


EXECUTOR_NAMES = ("joblib", "here", "ray")


def find_executor(
    name: str = "joblib", *, workers: int | None = None, address: str | None = None
) -> Executor:
    """Return an executor by name: `joblib` (worker processes, one per core by default), `here` (this process) or `ray`.

    `joblib` with one worker runs in this process.
    """
    if workers is not None and workers < 1:
        raise InputError(
            expected="workers: 1 or more",
            got=f"workers={workers}",
            fix="leave it out to use one worker per core",
        )
    amount = workers or os.cpu_count() or 1
    if name == "here" or (name == "joblib" and amount == 1):
        return in_process
    if name == "joblib":
        return on_joblib(amount)
    if name == "ray":
        return on_ray(address, workers)
    raise InputError(
        expected="executor: one of " + ", ".join(EXECUTOR_NAMES),
        got=f"executor={name!r}",
        fix="choose one of these",
    )
