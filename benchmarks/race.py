"""Race every residual scheme on real data at 12 and 48 blocks, and the leading ones at 200 (docs/lab-notes/race.md).

    python -m benchmarks.race --depth 12 48     all schemes, with and without groups
    python -m benchmarks.race --depth 12 --data images     the same on digits
    python -m benchmarks.race --leading 200     the leading eight of 48 blocks (without groups) at 200 blocks
    python -m benchmarks.race --grouped 200     those of the leading eight with groups that do not lead without
    python -m benchmarks.race --yardstick       CompleteP's three, a = 0, 1/2 and 1, with more seeds at 12 and 48 blocks
    python -m benchmarks.race --seconds 500     start no further bundle after this much processor time
    python -m benchmarks.race --speed           networks trained together against one after the other
    python -m benchmarks.race --table           fill docs/lab-notes/race.md from the stored cells

Finished cells are stored in benchmarks/results/race_cells.jsonl and not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmarks.result_files import RESULTS, ROOT, Results, fill_file, load, run_missing, save, table
from benchmarks.time_limit import take, until
from benchmarks.timing import alternate, machine, ratio, rounded
from leadline.lab.race.grid import Budget, Grid, race_cells, race_job
from leadline.lab.race.page import LEAGUE_HEADER, TRANSFER_HEADER, league_rows, transfer_rows
from leadline.lab.race.record import Race, Standing
from leadline.lab.race.standings import build_race
from leadline.lab.race.tasks import base_rate, find_variant
from leadline.lab.race.training import train_bundle
from leadline.lab.sweeps import CellStore, find_executor, run_sweep
from leadline.lab.sweeps.cells import Settings
from leadline.nn import SCHEMES

CELLS = RESULTS / "race_cells.jsonl"
BUDGET = Budget(steps=80, width=16)
WIDE, NARROW = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1), (3e-3, 1e-2)
RATES = {12: WIDE, 48: WIDE, 200: (3e-3, 1e-2, 3e-2)}  # by depth; fewer where a network is expensive
GROUPED_RATES = (1e-2, 3e-2)  # at 200 blocks: at 48 the best rate of all of them is 0.03
DATA = ("text", "images")
SEEDS = 3
LEADING = 8
YARDSTICK = (
    "pre",
    "residual-sqrt",
    "residual-linear",
)  # branches scaled by depth^-a with a of 0, 1/2 and 1
YARDSTICK_SEEDS = 9  # with three, Student's factor of 4.3 leaves every power open (measured here)


def run(grid: Grid, seconds: float) -> None:
    watch = until(seconds, f"{grid.depths} blocks")
    run_sweep(
        race_job(), race_cells(grid), store=CellStore(CELLS), executor=find_executor("here"), progress=watch
    )


def cells(seeds: int = SEEDS, data: str = "text") -> list[tuple[Settings, Any]]:
    """Return all stored cells with these data, rates and seeds."""
    found = [
        (settings, result) for _, settings, result in CellStore(CELLS).items() if settings["data"] == data
    ]
    return [pair for pair in found if pair[0]["rate"] in RATES[pair[0]["depth"]] and pair[0]["seed"] < seeds]


def yardstick() -> Race:
    """Return the three reference schemes with all their seeds, at the depths with a wide grid."""
    mine = [
        pair
        for pair in cells(YARDSTICK_SEEDS)
        if pair[0]["scheme"] in YARDSTICK and RATES[pair[0]["depth"]] == WIDE
    ]
    return build_race(mine, base_rate("text"))


def leading(at: int, *, rates: Sequence[float] = WIDE, plain: bool = False) -> tuple[str, ...]:
    """Return the variants that lead at a depth among these rates; `plain` leaves out those with groups."""
    pairs = [
        pair
        for pair in cells()
        if pair[0]["depth"] == at and pair[0]["rate"] in rates and (pair[0]["scheme"] in SCHEMES or not plain)
    ]
    (table,) = build_race(pairs, base_rate("text")).tables
    return tuple(row.scheme for row in table[:LEADING])


def grouped(at: int) -> tuple[str, ...]:
    """Return the leading variants with groups whose scheme does not lead without groups."""
    leaders = leading(at)
    return tuple(name for name in leaders if name not in SCHEMES and find_variant(name).scheme not in leaders)


def keep() -> Results:
    """Save the record of the race, built from its cells."""
    results = load("race")
    results["machine"] = machine()
    found = {data: cells(data=data) for data in DATA}
    races = {data: build_race(pairs, base_rate(data)) for data, pairs in found.items() if pairs}
    races["yardstick"] = yardstick()
    results["cases"] = {name: json.loads(found.to_json()) for name, found in races.items()}
    save("race", results)
    return results


def render(results: Results) -> str:
    """Return one league table per depth, and how the best rate changes with depth."""
    races = {name: Race.from_json(json.dumps(record)) for name, record in results["cases"].items()}
    found, more = races["text"], races["yardstick"]
    parts = [f"{_budget(found)} windows of {found.time} characters, {_rest(found)}", *_tables(found, "")]
    if "images" in races:
        images = races["images"]
        parts += [f"Digits: {_budget(images)} images, {_rest(images)}", *_tables(images, ", digits")]
        alike = agreement(found.tables[0], images.tables[0])
        parts.append(f"The order here and that on text at 12 blocks: a rank correlation of {alike:.2f}.")
    parts += [
        "### How the best rate moves with depth",
        table(list(TRANSFER_HEADER), transfer_rows(found.transfers)),
        f"The three schemes with a prediction again, with {more.seeds} seeds:",
        table(list(TRANSFER_HEADER), transfer_rows(more.transfers)),
    ]
    return "\n\n".join(parts)


def agreement(one: Sequence[Standing], other: Sequence[Standing]) -> float:
    """Return Spearman's rank correlation of two tables, over the schemes in both."""
    places = [{row.scheme: place for place, row in enumerate(table)} for table in (one, other)]
    shared = sorted(places[0].keys() & places[1].keys())
    return statistics.correlation(*([each[name] for name in shared] for each in places))


def _budget(found: Race) -> str:
    return f"{found.steps} steps of {found.batch}"


def _rest(found: Race) -> str:
    return f"width {found.width}, {found.seeds} seeds. A constant prediction costs {found.base_rate:.2f}."


def _tables(found: Race, of: str) -> list[str]:
    """Return the heading, the rates and the table of each depth."""
    return [
        part
        for standing in found.tables
        for part in (
            f"### {standing[0].depth} blocks{of}",
            grids(standing),
            table(list(LEAGUE_HEADER), league_rows(standing)),
        )
    ]


def grids(standing: Sequence[Standing]) -> str:
    """Return the rates of a table; if some schemes have fewer rates, say which."""
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
    """Compare the processor time of twelve networks, built and trained together or one after the other."""
    grid = Grid(schemes=("pre",), depths=(12,), rates=WIDE[:4], budget=Budget(steps=3, width=16))
    lanes = race_cells(grid)
    ways = {
        "side by side": lambda: train_bundle(lanes),
        "alone": lambda: [train_bundle([cell]) for cell in lanes],
    }
    seconds = alternate(ways, rounds=3, warmups=1, clock=time.process_time)
    return {"speedup": rounded(ratio(seconds["alone"], seconds["side by side"]))}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--depth", type=int, nargs="*", default=[])
    parser.add_argument("--data", choices=DATA, default="text", help="with --depth")
    parser.add_argument("--leading", type=int)
    parser.add_argument("--grouped", type=int)
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
        fill_file(ROOT / "docs" / "lab-notes" / "race.md", "race", render(keep()))
    for grid in selected_grids(asked):
        run(grid, asked.seconds)


def selected_grids(asked: argparse.Namespace) -> Iterator[Grid]:
    """Return the grids that the command line selects."""
    if asked.leading:
        names = leading(48, rates=NARROW, plain=True)
        yield Grid(schemes=names, depths=(asked.leading,), rates=RATES[asked.leading], budget=BUDGET)
    if asked.grouped:
        yield Grid(schemes=grouped(48), depths=(asked.grouped,), rates=GROUPED_RATES, budget=BUDGET)
    if asked.yardstick:
        yield Grid(schemes=YARDSTICK, depths=(12, 48), rates=WIDE, seeds=YARDSTICK_SEEDS, budget=BUDGET)
    for depth in asked.depth:
        yield Grid(
            schemes=tuple(asked.schemes), depths=(depth,), rates=RATES[depth], data=asked.data, budget=BUDGET
        )


if __name__ == "__main__":
    take(main)
