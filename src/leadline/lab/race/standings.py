"""Run a race and build its record: league tables, rate sensitivity, and how the best rate changes with depth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from leadline.errors import InputError
from leadline.lab.race.grid import Grid, race_cells, race_job
from leadline.lab.race.record import Race, RateTransfer, SeedInterval, Standing
from leadline.lab.race.tasks import base_rate, find_variant
from leadline.lab.sweeps import CellStore, Executor, Progress, run_sweep
from leadline.lab.sweeps.executors import in_process
from leadline.nn import SCHEMES
from leadline.readings.depth_law import student_quantile


class NetworkResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of training one network."""

    scheme: str
    depth: int
    rate: float
    seed: int
    valid: float
    held_out: float
    curve: tuple[float, ...]


def seed_interval(values: Sequence[float]) -> SeedInterval:
    """Return the mean over seeds with its 95 % interval (Student's t)."""
    mean = statistics.fmean(values)
    if len(values) < 2 or not math.isfinite(mean):
        return SeedInterval(mean=mean, half=None)
    half = student_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return SeedInterval(mean=mean, half=half)


def league_table(results: Iterable[NetworkResult], depth: int, base_rate: float) -> tuple[Standing, ...]:
    """Return every scheme at this depth, the best first. `base_rate` is the loss of a network that learned nothing."""
    groups = by_scheme(each for each in results if each.depth == depth)
    best = {scheme: best_rate(cells) for scheme, cells in groups.items()}
    ends = {scheme: losses_at(cells, best[scheme]) for scheme, cells in groups.items()}
    order = sorted(groups, key=lambda scheme: statistics.fmean(ends[scheme].values()))
    return tuple(_standing(groups[scheme], best[scheme], ends[order[0]], base_rate) for scheme in order)


def _standing(
    cells: list[NetworkResult], rate: float, leader: dict[int, float], base_rate: float
) -> Standing:
    mine = losses_at(cells, rate)
    by_rate = _by_rate(cells)
    rates = [each for each, _ in by_rate]
    lowest = statistics.fmean(mine.values())
    worst = max(base_rate, lowest)
    capped = [min(statistics.fmean(losses_at(cells, each).values()), worst) for each in rates]
    return Standing(
        scheme=cells[0].scheme,
        depth=cells[0].depth,
        rate=rate,
        at_edge=rate in (rates[0], rates[-1]),
        loss=seed_interval(list(mine.values())),
        behind=seed_interval([mine[seed] - leader[seed] for seed in mine if seed in leader]),
        sensitivity=statistics.fmean(capped) - lowest if math.isfinite(lowest) else 0.0,
        by_rate=by_rate,
        curve=_mean_curve([cell.curve for cell in cells if cell.rate == rate]),
    )


def by_scheme(results: Iterable[NetworkResult]) -> dict[str, list[NetworkResult]]:
    groups: dict[str, list[NetworkResult]] = {}
    for each in results:
        groups.setdefault(each.scheme, []).append(each)
    return groups


def _by_rate(cells: Sequence[NetworkResult]) -> tuple[tuple[float, float], ...]:
    rates = sorted({cell.rate for cell in cells})
    return tuple(
        (rate, statistics.fmean(rank_loss(cell.valid) for cell in cells if cell.rate == rate))
        for rate in rates
    )


def best_rate(cells: Sequence[NetworkResult]) -> float:
    return min(_by_rate(cells), key=lambda pair: pair[1])[0]


def losses_at(cells: Sequence[NetworkResult], rate: float) -> dict[int, float]:
    return {cell.seed: rank_loss(cell.held_out) for cell in cells if cell.rate == rate}


def rank_loss(loss: float) -> float:
    """Return infinity for a loss that is not finite, so that it ranks last."""
    return loss if math.isfinite(loss) else math.inf


def _mean_curve(curves: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(statistics.fmean(values) for values in zip(*curves, strict=True))


# How the best rate changes with depth.

Tables = Mapping[int, Sequence[NetworkResult]]
"""The results of one scheme by depth."""


def rate_transfers(
    results: Iterable[NetworkResult], optimizer: str, base_rate: float
) -> tuple[RateTransfer, ...]:
    """Return the change of the best rate for every scheme with at least two depths."""
    by_depth = {scheme: _by_depth(cells) for scheme, cells in by_scheme(results).items()}
    return tuple(
        _transfer(scheme, tables, _predicted(scheme, optimizer), base_rate)
        for scheme, tables in by_depth.items()
        if len(tables) > 1
    )


def _by_depth(cells: Sequence[NetworkResult]) -> Tables:
    depths = sorted({cell.depth for cell in cells})
    return {depth: [cell for cell in cells if cell.depth == depth] for depth in depths}


def _transfer(scheme: str, tables: Tables, predicted: float | None, base_rate: float) -> RateTransfer:
    seeds = sorted(set.intersection(*({cell.seed for cell in table} for table in tables.values())))
    optima = {depth: [_optimum(table, seed, base_rate) for seed in seeds] for depth, table in tables.items()}
    known = {depth: _is_known(table, base_rate) for depth, table in tables.items()}
    return RateTransfer(
        scheme=scheme,
        depths=tuple(tables),
        optima=tuple(math.exp(statistics.fmean(map(math.log, column))) for column in optima.values()),
        power=_power({depth: optima[depth] for depth in tables if known[depth]}),
        predicted=predicted,
        known=tuple(known.values()),
    )


def _is_known(table: Sequence[NetworkResult], base_rate: float) -> bool:
    """Return whether the best rate lies inside the grid and the network learns there."""
    best, rates = best_rate(table), {cell.rate for cell in table}
    return min(rates) < best < max(rates) and statistics.fmean(losses_at(table, best).values()) < base_rate


def _power(optima: Mapping[int, Sequence[float]]) -> SeedInterval | None:
    """Return the slope of log(best rate) against log(depth), one per seed; None with fewer than two depths."""
    if len(optima) < 2:
        return None
    across = [math.log(depth) for depth in optima]
    slopes = [
        statistics.linear_regression(across, [math.log(best) for best in row]).slope
        for row in zip(*optima.values(), strict=True)
    ]
    return seed_interval(slopes)


def _predicted(scheme: str, optimizer: str) -> float | None:
    if find_variant(scheme).grouped:  # the groups already follow the law
        return 0.0
    a = SCHEMES[scheme].exponent
    if (
        scheme == "pre"
    ):  # branches of size 1 have a = 0; the scheme itself does not say so because its rates do not change
        a = 0.0
    return None if a is None else (a - 1 if optimizer == "adam" else 2 * a - 1)


def _optimum(cells: Sequence[NetworkResult], seed: int, base_rate: float) -> float:
    """Return the minimum of the parabola through the best rate and its neighbors, in log rate; an edge stays an edge.

    A neighbor that diverged counts as a constant prediction: its own huge loss would push the minimum halfway to the
    other neighbor, and an infinite loss has no parabola.
    """
    points = sorted((math.log(cell.rate), rank_loss(cell.valid)) for cell in cells if cell.seed == seed)
    at = min(range(len(points)), key=lambda index: points[index][1])
    if at in (0, len(points) - 1):
        return math.exp(points[at][0])
    worst = max(base_rate, points[at][1])
    (x0, y0), (x1, y1), (x2, y2) = ((x, min(y, worst)) for x, y in points[at - 1 : at + 2])
    left, right = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    bend = (right - left) / (x2 - x0)
    return math.exp((x0 + x1) / 2 - left / (2 * bend) if bend > 0 else x1)


# The record of a race, from its finished cells.


def network_result(cell: Mapping[str, Any], result: Mapping[str, Any]) -> NetworkResult:
    named = {name: cell[name] for name in ("scheme", "depth", "rate", "seed")}
    return msgspec.convert({**named, **result}, NetworkResult, strict=False)


def build_race(
    pairs: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]], base_rate: float, failed: Iterable[str] = ()
) -> Race:
    """Build the record of a race from pairs of a cell and its result."""
    cells = list(pairs)
    results = [network_result(cell, result) for cell, result in cells]
    first = cells[0][0]
    return Race(
        data=first["data"],
        optimizer=first["optimizer"],
        seeds=len({each.seed for each in results}),
        steps=first["steps"],
        batch=first["batch"],
        width=first["width"],
        time=first["time"],
        base_rate=base_rate,
        tables=tuple(
            league_table(results, depth, base_rate) for depth in sorted({each.depth for each in results})
        ),
        transfers=rate_transfers(results, first["optimizer"], base_rate),
        failed=tuple(failed),
    )


# Running a race: the cells of a grid, run by an executor.

FULL_GRID = Grid()


def race(
    grid: Grid = FULL_GRID,
    *,
    store: CellStore | None = None,
    executor: Executor = in_process,
    progress: Progress | None = None,
) -> Race:
    """Train every scheme of the grid with the same budget and rank them. Cells in the store are not run again."""
    cells = race_cells(grid)
    sweep = run_sweep(race_job(), cells, store=store, executor=executor, progress=progress)
    done = [(cell, result) for cell, result in zip(cells, sweep.results, strict=True) if result is not None]
    failed = [
        f"{each.settings['scheme']} at {each.settings['depth']}: {each.reason}" for each in sweep.failures
    ]
    if not done:
        raise InputError(
            expected="at least one network that could be trained",
            got=f"{len(failed)} failures; the first is {failed[0]}",
            fix="correct the cause of this failure and run the race again; nothing was saved",
        )
    return build_race(done, base_rate(grid.data), failed)
