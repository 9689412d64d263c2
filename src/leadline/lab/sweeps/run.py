"""Run a sweep: run the missing cells, retry after the death of a worker, and store every result as it arrives."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from leadline.lab.sweeps.cells import Executor, Settings, Success, Work, WorkError, cell_key
from leadline.lab.sweeps.executors import in_process
from leadline.lab.sweeps.store import CellStore

# Heuristic: rounds in which all missing cells run at once; most crashes are of the machine, not of a cell.
BUNDLE_ROUNDS = 2
# Heuristic: rounds after these, one cell at a time, so that a cell that kills its worker loses no other cell.
SINGLE_CELL_ROUNDS = 2

Progress = Callable[[int, int, str], object]
"""Called with the number of finished cells, the total, and what is running now."""
MissingCells = dict[str, Settings]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The work that is done for every cell of a sweep. `version` is part of each key, see `cell_key`.

    Cells with the same `bundle_key` are run together by one worker, at most `max_bundle` of them.
    """

    work: Work
    version: str
    bundle_key: Callable[[Settings], Hashable] | None = None
    max_bundle: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A cell without a result, with the reason."""

    settings: Settings
    reason: str
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The results in the order of the cells, None if a cell failed, and the failures."""

    results: tuple[Any, ...]
    failures: tuple[Failure, ...]
    ran: int
    """How many cells were not in the store."""


def run_sweep(
    job: Job,
    cells: Sequence[Settings],
    *,
    store: CellStore | None = None,
    executor: Executor = in_process,
    progress: Progress | None = None,
) -> Sweep:
    """Return the result of each cell, from the store or by running it.

    An error of the work is a failure of its cell. It is not stored, so the next sweep tries the cell again. A bundle
    that raises, or whose worker dies, is tried again, in the end cell by cell.
    """
    results = CellStore() if store is None else store
    keys = [cell_key(settings, job.version) for settings in cells]
    missing = {key: settings for key, settings in zip(keys, cells, strict=True) if key not in results}
    failed: dict[str, Failure] = {}
    ran, total = len(missing), len(set(keys))
    for bundles in _rounds(job, missing):
        if progress is not None:
            progress(total - len(missing), total, "")
        for bundle_keys, outcome in _run(executor, job.work, bundles):
            bundle = {key: missing[key] for key in bundle_keys}
            _record_outcome(bundle, outcome, results, failed)
            failed_alone = isinstance(outcome, WorkError) and len(bundle) == 1
            for key in bundle:
                if key in results or failed_alone:
                    del missing[key]
            if progress is not None:
                progress(total - len(missing), total, "")
    return Sweep(
        results=tuple(results.get(key) for key in keys),
        failures=tuple(failure for key, failure in failed.items() if key not in results),
        ran=ran,
    )


def _record_outcome(
    bundle: MissingCells, outcome: object, results: CellStore, failed: dict[str, Failure]
) -> None:
    """Put results into the store and everything else into the failures."""
    if isinstance(outcome, Success):
        for (key, settings), result in zip(bundle.items(), outcome.results, strict=True):
            results.add(key, settings, result)
        return
    for key, settings in bundle.items():
        if isinstance(outcome, WorkError):
            failed[key] = Failure(settings=settings, reason=outcome.error, traceback=outcome.traceback)
        else:
            failed[key] = Failure(
                settings=settings, reason=f"the worker died: {getattr(outcome, 'reason', '')}"
            )


def _rounds(job: Job, missing: MissingCells) -> Iterator[list[MissingCells]]:
    """Yield lists of bundles that run at the same time, made of the cells that are missing by then."""
    for _ in range(BUNDLE_ROUNDS):
        if missing:
            yield list(_bundles(job, missing))
    for _ in range(SINGLE_CELL_ROUNDS):
        for key in list(missing):
            if key in missing:
                yield [{key: missing[key]}]


def _bundles(job: Job, missing: MissingCells) -> Iterator[MissingCells]:
    """Yield bundles of cells with the same bundle key, or single cells if the job has none."""
    groups: dict[Hashable, list[str]] = {}
    for key, settings in missing.items():
        groups.setdefault(key if job.bundle_key is None else job.bundle_key(settings), []).append(key)
    for keys in groups.values():
        for start in range(0, len(keys), job.max_bundle):
            yield {key: missing[key] for key in keys[start : start + job.max_bundle]}


def _run(
    executor: Executor, work: Work, bundles: Sequence[MissingCells]
) -> Iterator[tuple[list[str], object]]:
    for index, outcome in executor(work, [list(bundle.values()) for bundle in bundles]):
        yield list(bundles[index]), outcome
