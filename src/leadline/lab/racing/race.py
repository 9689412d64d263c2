"""A race: the cells of a grid through an executor, and what they say."""

from __future__ import annotations

from leadline.errors import InputError
from leadline.lab.racing.grid import Grid, cells_of, race_job
from leadline.lab.racing.record import race_of
from leadline.lab.racing.tracks import base_rate
from leadline.report.racing.record import Race
from leadline.sweeps import Executor, Progress, Store, run_sweep
from leadline.sweeps.here import in_process

ALL = Grid()


def race(
    grid: Grid = ALL,
    *,
    store: Store | None = None,
    executor: Executor = in_process,
    progress: Progress | None = None,
) -> Race:
    """Train every scheme of the grid with the same budget and rank them. Cells that the store has are not run again."""
    cells = cells_of(grid)
    found = run_sweep(race_job(), cells, store=store, executor=executor, progress=progress)
    done = [(cell, result) for cell, result in zip(cells, found.results, strict=True) if result is not None]
    failed = [
        f"{each.settings['scheme']} at {each.settings['depth']}: {each.reason}" for each in found.failures
    ]
    if not done:
        raise InputError(
            expected="at least one network that could be trained",
            got=f"none of {len(failed)}; the first, {failed[0]}",
            fix="see its reason; nothing was stored",
        )
    return race_of(done, base_rate(grid.data), failed)
