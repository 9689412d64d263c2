"""A sweep: what is missing is run, deaths are retried, and every result is kept as soon as it is there."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from leadline.lab.sweeps.cells import Executor, Settings, Success, Work, WorkError, cell_key
from leadline.lab.sweeps.executors import in_process
from leadline.lab.sweeps.store import CellStore

BUNDLE_ROUNDS = (
    2  # rounds in which all that is missing runs at once: most deaths are of the machine, not of the cell
)
SINGLE_CELL_ROUNDS = (
    2  # tries after these, one cell at a time, so that a cell that kills its worker takes nobody with it
)

Progress = Callable[[int, int, str], object]
"""Called with (done, total, what is being done)."""
MissingCells = dict[str, Settings]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is done to every cell of a sweep. `version`: see `key_of`.

    Cells for which `kin` says the same are done by one worker at once, up to `most` of them.
    """

    work: Work
    version: str
    kin: Callable[[Settings], Hashable] | None = None
    most: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A cell without a result, and why."""

    settings: Settings
    reason: str
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Results in the order of the cells, None where there is none; and those that failed."""

    results: tuple[Any, ...]
    failures: tuple[Failure, ...]
    ran: int
    """Cells that were not in the store."""


def run_sweep(
    job: Job,
    cells: Sequence[Settings],
    *,
    store: CellStore | None = None,
    executor: Executor = in_process,
    progress: Progress | None = None,
) -> Sweep:
    """The result of each cell: from the store, or by running it.

    An error of the work is a failure of its cell, and is not stored: the next run tries again, when the code may be
    mended. A bundle that raises or whose worker died is tried again, at last cell by cell.
    """
    kept = CellStore() if store is None else store
    keys = [cell_key(settings, job.version) for settings in cells]
    missing = {key: settings for key, settings in zip(keys, cells, strict=True) if key not in kept}
    failed: dict[str, Failure] = {}
    ran, total = len(missing), len(set(keys))
    for bundles in _rounds(job, missing):
        if progress is not None:
            progress(total - len(missing), total, "")
        for keys_of_bundle, outcome in _run(executor, job.work, bundles):
            found = {key: missing[key] for key in keys_of_bundle}
            _note(found, outcome, kept, failed)
            for key in found:
                if key in kept or (isinstance(outcome, WorkError) and len(found) == 1):
                    del missing[key]
            if progress is not None:
                progress(total - len(missing), total, "")
    return Sweep(
        results=tuple(kept.get(key) for key in keys),
        failures=tuple(failure for key, failure in failed.items() if key not in kept),
        ran=ran,
    )


def _note(found: MissingCells, outcome: object, kept: CellStore, failed: dict[str, Failure]) -> None:
    """Results go to the store, everything else to the failures."""
    if isinstance(outcome, Success):
        for (key, settings), result in zip(found.items(), outcome.results, strict=True):
            kept.add(key, settings, result)
        return
    for key, settings in found.items():
        if isinstance(outcome, WorkError):
            failed[key] = Failure(settings=settings, reason=outcome.error, traceback=outcome.traceback)
        else:
            failed[key] = Failure(
                settings=settings, reason=f"its worker died: {getattr(outcome, 'reason', '')}"
            )


def _rounds(job: Job, missing: MissingCells) -> Iterator[list[MissingCells]]:
    """Bundles that run at the same time, made of what is missing then."""
    for _ in range(BUNDLE_ROUNDS):
        if missing:
            yield list(_bundles(job, missing))
    for _ in range(SINGLE_CELL_ROUNDS):
        for key in list(missing):
            if key in missing:
                yield [{key: missing[key]}]


def _bundles(job: Job, missing: MissingCells) -> Iterator[MissingCells]:
    """Kin together, at most so many; without kin, each alone."""
    groups: dict[Hashable, list[str]] = {}
    for key, settings in missing.items():
        groups.setdefault(key if job.kin is None else job.kin(settings), []).append(key)
    for keys in groups.values():
        for start in range(0, len(keys), job.most):
            yield {key: missing[key] for key in keys[start : start + job.most]}


def _run(
    executor: Executor, work: Work, bundles: Sequence[MissingCells]
) -> Iterator[tuple[list[str], object]]:
    for index, outcome in executor(work, [list(bundle.values()) for bundle in bundles]):
        yield list(bundles[index]), outcome
