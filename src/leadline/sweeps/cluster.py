"""The executor on Ray: this machine, or a cluster that is there already, by its address."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from leadline.errors import InputError
from leadline.sweeps.outcomes import Bundle, Died, Executor, Outcome, Work, attempt

AHEAD = (
    4  # bundles handed over for each processor of the cluster: none idles, and a long sweep does not flood it
)


def on_ray(address: str | None = None, workers: int | None = None) -> Executor:
    """`address`: of a running cluster ("auto", "ray://host:10001"); None starts Ray here, with so many `workers`."""
    ray = _ray()
    if not ray.is_initialized():
        _start(ray, address, workers)

    def run(work: Work, bundles: Sequence[Bundle]) -> Iterator[tuple[int, Outcome]]:
        remote = ray.remote(max_retries=0)(
            attempt
        )  # deaths are counted and retried by the sweep, in one place
        ahead = AHEAD * max(int(ray.cluster_resources().get("CPU", 1)), 1)
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
        return Died(reason=type(error).__name__)
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
