"""Every residual scheme on real text at 12 and 48 blocks, the leading ones at 200: the race that docs/race.md shows.

python -m benchmarks.race --depth 12 48     all schemes, with and without groups; finished cells are not run again
python -m benchmarks.race --leading 200     the leading eight of 48 blocks (without groups), at 200
python -m benchmarks.race --yardstick       CompleteP's three, a = 0, 1/2 and 1, with more seeds at 12 and 48 blocks
python -m benchmarks.race --seconds 500     begin no further bundle after so much processor time
python -m benchmarks.race --speed           networks side by side against one after the other
python -m benchmarks.race --table           fill docs/race.md from the stored cells
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.side_by_side import alternate, machine, ratio, rounded
from benchmarks.store import RESULTS, ROOT, Results, fill_file, load, run_missing, save, table
from benchmarks.turn import take, until
from leadline.lab.racing.grid import Budget, Grid, cells_of, race_job
from leadline.lab.racing.lanes import run_lanes
from leadline.lab.racing.record import race_of
from leadline.lab.racing.tracks import base_rate
from leadline.nn import SCHEMES
from leadline.report.racing.record import Race, Standing
from leadline.report.racing.showing import HEAD, MOVES, league_rows, transfer_rows
from leadline.sweeps import Store, find_executor, run_sweep
from leadline.sweeps.cells import Settings

CELLS = RESULTS / "race_cells.jsonl"
BUDGET = Budget(steps=80, width=16)
WIDE, NARROW = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1), (3e-3, 1e-2)
RATES = {12: WIDE, 48: WIDE, 200: NARROW}  # by blocks; fewer where a network costs more
SEEDS = 3
LEADING = 8
YARDSTICK = (
    "pre",
    "residual-sqrt",
    "residual-linear",
)  # branches damped like depth^-a with a of 0, 1/2 and 1
YARDSTICK_SEEDS = 9  # with three, Student's factor of 4.3 leaves every power open (measured here)


def run(grid: Grid, seconds: float) -> None:
    watch = until(seconds, f"{grid.depths} blocks")
    run_sweep(race_job(), cells_of(grid), store=Store(CELLS), executor=find_executor("here"), progress=watch)


def cells(seeds: int = SEEDS) -> list[tuple[Settings, Any]]:
    """All that are there, of the rates and seeds that are asked for."""
    found = [(settings, result) for _, settings, result in Store(CELLS).items()]
    return [pair for pair in found if pair[0]["rate"] in RATES[pair[0]["depth"]] and pair[0]["seed"] < seeds]


def yardstick() -> Race:
    """The three schemes of the yardstick, with all of their seeds, at the depths with a wide grid."""
    mine = [
        pair
        for pair in cells(YARDSTICK_SEEDS)
        if pair[0]["scheme"] in YARDSTICK and RATES[pair[0]["depth"]] == WIDE
    ]
    return race_of(mine, base_rate("text"))


def leading(at: int, depth: int) -> tuple[str, ...]:
    """Schemes that lead at a depth, all parameters at one rate, among the rates of the other depth."""
    pairs = [
        pair
        for pair in cells()
        if pair[0]["depth"] == at and pair[0]["rate"] in RATES[depth] and pair[0]["scheme"] in SCHEMES
    ]
    (table,) = race_of(pairs, base_rate("text")).tables
    return tuple(row.scheme for row in table[:LEADING])


def keep() -> Results:
    """The record of the race, from its cells."""
    results = load("race")
    results["machine"] = machine()
    races = {"text": race_of(cells(), base_rate("text")), "yardstick": yardstick()}
    results["cases"] = {name: json.loads(found.to_json()) for name, found in races.items()}
    save("race", results)
    return results


def render(results: Results) -> str:
    """A league table a depth, and how the best rate moved."""
    found, more = (Race.from_json(json.dumps(results["cases"][name])) for name in ("text", "yardstick"))
    budget = (
        f"{found.steps} steps of {found.batch} windows of {found.time} characters, width {found.width}, "
        f"{found.seeds} seeds. A constant prediction costs {found.base_rate:.2f}."
    )
    parts = [budget]
    for standing in found.tables:
        parts += [
            f"### {standing[0].depth} blocks",
            grids(standing),
            table(list(HEAD), league_rows(standing)),
        ]
    parts += [
        "### How the best rate moves with depth",
        table(list(MOVES), transfer_rows(found.transfers)),
        f"The yardstick once more, with {more.seeds} seeds:",
        table(list(MOVES), transfer_rows(more.transfers)),
    ]
    return "\n\n".join(parts)


def grids(standing: Sequence[Standing]) -> str:
    """The rates of a table; if some schemes were run at fewer, which and at which."""
    by_rates: dict[tuple[float, ...], list[str]] = {}
    for row in standing:
        by_rates.setdefault(tuple(rate for rate, _ in row.by_rate), []).append(row.scheme)
    most, *fewer = sorted(by_rates, key=len, reverse=True)
    said = [f"Rates {', '.join(f'{rate:g}' for rate in most)}."]
    said += [
        f"Only at {', '.join(f'{rate:g}' for rate in rates)}: {', '.join(by_rates[rates])}."
        for rates in fewer
    ]
    return " ".join(said)


def measure_speed() -> dict[str, dict[str, float]]:
    """Twelve networks side by side against one after the other: processor time, building them included."""
    grid = Grid(schemes=("pre",), depths=(12,), rates=WIDE[:4], budget=Budget(steps=3, width=16))
    lanes = cells_of(grid)
    ways = {"side by side": lambda: run_lanes(lanes), "alone": lambda: [run_lanes([cell]) for cell in lanes]}
    seconds = alternate(ways, rounds=3, warmups=1, clock=time.process_time)
    return {"speedup": rounded(ratio(seconds["alone"], seconds["side by side"]))}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--depth", type=int, nargs="*", default=[])
    parser.add_argument("--leading", type=int)
    parser.add_argument("--schemes", nargs="*", default=[], help="with --depth: only these")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--yardstick", action="store_true")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.speed:
        run_missing("race_speed", {"12 networks of 12 blocks": measure_speed}, print)
    if asked.table:
        fill_file(ROOT / "docs" / "race.md", "race", render(keep()))
    if asked.leading:
        names = leading(48, asked.leading)
        grid = Grid(schemes=names, depths=(asked.leading,), rates=RATES[asked.leading], budget=BUDGET)
        run(grid, asked.seconds)
    if asked.yardstick:
        grid = Grid(schemes=YARDSTICK, depths=(12, 48), rates=WIDE, seeds=YARDSTICK_SEEDS, budget=BUDGET)
        run(grid, asked.seconds)
    for depth in asked.depth:
        grid = Grid(schemes=tuple(asked.schemes), depths=(depth,), rates=RATES[depth], budget=BUDGET)
        run(grid, asked.seconds)


if __name__ == "__main__":
    take(main)
