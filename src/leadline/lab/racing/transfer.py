"""How the best rate moves with depth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from leadline.lab.racing.entrants import find_entrant
from leadline.lab.racing.standings import Finish, best_rate, by_scheme, losses_at, ranked, spread
from leadline.nn import SCHEMES
from leadline.report.racing.record import Interval, Transfer

Tables = Mapping[int, Sequence[Finish]]
"""Of one scheme, by depth."""


def transfer(finishes: Iterable[Finish], optimizer: str, base_rate: float) -> tuple[Transfer, ...]:
    """For every scheme that was raced at two depths or more. `base_rate`: the loss of one that learned nothing."""
    by_depth = {scheme: _by_depth(cells) for scheme, cells in by_scheme(finishes).items()}
    return tuple(
        _transfer(scheme, tables, _predicted(scheme, optimizer), base_rate)
        for scheme, tables in by_depth.items()
        if len(tables) > 1
    )


def _by_depth(cells: Sequence[Finish]) -> Tables:
    depths = sorted({cell.depth for cell in cells})
    return {depth: [cell for cell in cells if cell.depth == depth] for depth in depths}


def _transfer(scheme: str, tables: Tables, predicted: float | None, base_rate: float) -> Transfer:
    seeds = sorted(set.intersection(*({cell.seed for cell in table} for table in tables.values())))
    optima = {depth: [_optimum(table, seed, base_rate) for seed in seeds] for depth, table in tables.items()}
    known = {depth: _is_known(table, base_rate) for depth, table in tables.items()}
    return Transfer(
        scheme=scheme,
        depths=tuple(tables),
        optima=tuple(math.exp(statistics.fmean(map(math.log, column))) for column in optima.values()),
        power=_power({depth: optima[depth] for depth in tables if known[depth]}),
        predicted=predicted,
        known=tuple(known.values()),
    )


def _is_known(table: Sequence[Finish], base_rate: float) -> bool:
    """Whether the best rate lies inside of the grid, and the network learns there."""
    best, rates = best_rate(table), {cell.rate for cell in table}
    return min(rates) < best < max(rates) and statistics.fmean(losses_at(table, best).values()) < base_rate


def _power(optima: Mapping[int, Sequence[float]]) -> Interval | None:
    """Slope of log(best rate) against log(depth), one a seed; None with fewer than two depths."""
    if len(optima) < 2:
        return None
    across = [math.log(depth) for depth in optima]
    slopes = [
        statistics.linear_regression(across, [math.log(best) for best in row]).slope
        for row in zip(*optima.values(), strict=True)
    ]
    return spread(slopes)


def _predicted(scheme: str, optimizer: str) -> float | None:
    if find_entrant(scheme).grouped:  # the law is in the groups
        return 0.0
    a = SCHEMES[scheme].exponent
    if scheme == "pre":  # not in its row, whose rates stay as they are; branches of size 1 have a = 0
        a = 0.0
    return None if a is None else (a - 1 if optimizer == "adam" else 2 * a - 1)


def _optimum(cells: Sequence[Finish], seed: int, base_rate: float) -> float:
    """The lowest point of the parabola through the best rate and its neighbours, in log rate; at an edge, the edge.

    A neighbour that diverged counts as a constant prediction: by its own loss, of any size, it would push the lowest
    point half way to the other neighbour, and as infinity it would leave no parabola.
    """
    points = sorted((math.log(cell.rate), ranked(cell.valid)) for cell in cells if cell.seed == seed)
    at = min(range(len(points)), key=lambda index: points[index][1])
    if at in (0, len(points) - 1):
        return math.exp(points[at][0])
    worst = max(base_rate, points[at][1])
    (x0, y0), (x1, y1), (x2, y2) = ((x, min(y, worst)) for x, y in points[at - 1 : at + 2])
    left, right = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    bend = (right - left) / (x2 - x0)
    return math.exp((x0 + x1) / 2 - left / (2 * bend) if bend > 0 else x1)
