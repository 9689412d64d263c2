"""Every residual scheme on real text at 12 and 48 blocks, the leading ones at 200: the race that docs/race.md shows.

python -m benchmarks.race --depth 12 48     all schemes; finished cells are not run again
python -m benchmarks.race --leading 200     the leading eight of 48 blocks, at 200
python -m benchmarks.race --seconds 500     begin no further bundle after so much processor time
python -m benchmarks.race --speed           networks side by side against one after the other
python -m benchmarks.race --table           fill docs/race.md from the stored cells
"""

from __future__ import annotations

import argparse
import sys
import time

import torch

from benchmarks.store import RESULTS
from leadline.lab.racing.grid import Budget, Grid, cells_of, race_job
from leadline.lab.racing.record import Race, race_of
from leadline.lab.racing.tracks import base_rate
from leadline.sweeps import Store, find_executor, run_sweep

CELLS = RESULTS / "race_cells.jsonl"
BUDGET = Budget(steps=80, width=16)
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
DEEP_RATES = (3e-4, 1e-3, 3e-3, 1e-2)  # at 200 blocks the best rate of most schemes is lower
LEADING = 8


class OutOfTimeError(Exception):
    """The turn is over; what is finished is stored."""


def run(grid: Grid, seconds: float) -> None:
    deadline = time.process_time() + seconds

    def watch(done: int, total: int, text: str) -> None:
        print(f"{grid.depths} {done}/{total} {time.process_time():.0f} s", flush=True)
        if time.process_time() > deadline and done < total:
            raise OutOfTimeError

    run_sweep(race_job(), cells_of(grid), store=Store(CELLS), executor=find_executor("here"), progress=watch)


def standings() -> Race:
    """The record of all cells that are there."""
    return race_of([(settings, result) for _, settings, result in Store(CELLS).items()], base_rate("text"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--depth", type=int, nargs="*", default=[])
    parser.add_argument("--leading", type=int)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.leading:
        names = tuple(row.scheme for row in standings().tables[1][:LEADING])
        grid = Grid(schemes=names, depths=(asked.leading,), rates=DEEP_RATES, budget=BUDGET)
        run(grid, asked.seconds)
    if asked.depth:
        run(Grid(depths=tuple(asked.depth), rates=RATES, budget=BUDGET), asked.seconds)


if __name__ == "__main__":
    try:
        main()
    except OutOfTimeError:
        sys.exit(3)
