"""The executor with worker processes of this machine (joblib's loky)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from leadline.errors import InputError
from leadline.sweeps.outcomes import Bundle, Died, Executor, Outcome, Work, attempt_numbered

AT_LEAST = 2  # with one, joblib does the work in this process, and a death would be ours


def on_joblib(workers: int) -> Executor:
    """So many processes. If one dies, all that were at work are given up as dead, and the rest goes on in new ones."""
    joblib = _joblib()

    def run(work: Work, bundles: Sequence[Bundle]) -> Iterator[tuple[int, Outcome]]:
        waiting = list(range(len(bundles)))
        while waiting:
            started: list[int] = []
            ended: set[int] = set()
            tasks = _started(joblib, work, bundles, waiting, started)
            pool = joblib.Parallel(
                n_jobs=max(workers, AT_LEAST),
                pre_dispatch="n_jobs",
                batch_size=1,
                return_as="generator_unordered",
            )
            try:
                for index, outcome in pool(tasks):
                    ended.add(index)
                    yield index, outcome
            except _broken() as error:
                for index in [each for each in started if each not in ended]:
                    ended.add(index)
                    yield index, Died(reason=type(error).__name__)
            waiting = [index for index in waiting if index not in ended]

    return run


def _started(
    joblib: Any, work: Work, bundles: Sequence[Bundle], waiting: Sequence[int], started: list[int]
) -> Iterator[Any]:
    """Tasks for joblib, which takes one when a worker is free: what has been taken is what a death may have hit."""
    for index in waiting:
        started.append(index)
        yield joblib.delayed(attempt_numbered)(work, index, bundles[index])


def _broken() -> type[Exception]:
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
