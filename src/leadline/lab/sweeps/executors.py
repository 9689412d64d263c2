"""Executors: in this process, in worker processes, or on Ray."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from leadline.errors import InputError
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
    """Nothing can die here but everything."""
    for index, bundle in enumerate(bundles):
        yield index, run_bundle(work, bundle)


# The executor with worker processes of this machine (joblib's loky).

MIN_PROCESSES = 2  # with one, joblib does the work in this process, and a death would be ours


def on_joblib(workers: int) -> Executor:
    """So many processes. If one dies, all that were at work are given up as dead, and the rest goes on in new ones."""
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
    """Tasks for joblib, which takes one when a worker is free: what has been taken is what a death may have hit."""
    for index in waiting:
        started.append(index)
        yield joblib.delayed(run_numbered_bundle)(work, index, bundles[index])


def _broken_pool_error() -> type[Exception]:
    """What loky raises when a worker is gone; its other errors are its base class's subclasses too."""
    found: type[Exception] = import_module("joblib.externals.loky.process_executor").BrokenProcessPool
    return found


def _joblib() -> Any:
    try:
        return import_module("joblib")
    except ImportError:
        raise InputError(
            expected="joblib, for worker processes",
            got="an environment without it",
            fix="pip install 'leadline[lab]', or run in this process: executor 'here'",
        ) from None


# The executor on Ray: this machine, or a cluster that is there already, by its address.

MAX_PENDING_PER_CPU = (
    4  # bundles handed over for each processor of the cluster: none idles, and a long sweep does not flood it
)


def on_ray(address: str | None = None, workers: int | None = None) -> Executor:
    """`address`: of a running cluster ("auto", "ray://host:10001"); None starts Ray here, with so many `workers`."""
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
    """A cluster of our own reports to nobody: Ray's usage statistics are on unless its variable says otherwise."""
    if address is not None:
        ray.init(address=address, log_to_driver=False)
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)


def _next(ray: Any, pending: dict[Any, int]) -> Iterator[tuple[int, Outcome]]:
    """The bundles that end first, at least one."""
    ended, _ = ray.wait(list(pending), num_returns=1)
    for reference in ended:
        yield pending.pop(reference), _outcome(ray, reference)


def _outcome(ray: Any, reference: Any) -> Outcome:
    """A task's own errors are caught in the worker: what Ray raises is a lost worker, node or object."""
    try:
        found: Outcome = ray.get(reference)
    except ray.exceptions.RayTaskError:  # the work itself could not be loaded there
        raise
    except ray.exceptions.RayError as error:
        return WorkerDeath(reason=type(error).__name__)
    return found


def _ray() -> Any:
    try:
        return import_module("ray")
    except ImportError:
        raise InputError(
            expected="ray, for sweeps on a cluster",
            got="an environment without it",
            fix="pip install 'leadline[ray]', or use worker processes: executor 'joblib'",
        ) from None


# The executor of that name.

EXECUTOR_NAMES = ("joblib", "here", "ray")


def find_executor(
    name: str = "joblib", *, workers: int | None = None, address: str | None = None
) -> Executor:
    """`joblib`: worker processes, one a core if not told otherwise; `here`: this process; `ray`: see `on_ray`.

    One worker needs no process of its own: `joblib` with one is `here`.
    """
    if workers is not None and workers < 1:
        raise InputError(
            expected="workers: 1 or more", got=f"workers={workers}", fix="leave it out for one a core"
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
        fix="take one of these",
    )
