"""What a race says: the league table, how much the rate matters, and how the best rate moves with depth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

import msgspec

from leadline.forecasting.fit import student
from leadline.nn import SCHEMES


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """How one network ended."""

    scheme: str
    depth: int
    rate: float
    seed: int
    valid: float
    held_out: float
    curve: tuple[float, ...]


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over seeds, and half the width of its 95 % interval; None with a single seed."""

    mean: float
    half: float | None


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A scheme at a depth. The rate is chosen on the validation part, the loss is that of the held-out part."""

    scheme: str
    depth: int
    rate: float
    at_edge: bool
    """The best rate is the lowest or the highest of the grid: a better one may lie outside."""
    loss: Interval
    behind: Interval
    """Loss above the leader's, seed by seed: both saw the same samples in the same order."""
    sensitivity: float
    """Mean over all rates of the loss above the best one's; one above a constant prediction counts as that."""
    by_rate: tuple[tuple[float, float], ...]
    """Rate, and the mean validation loss over seeds."""
    curve: tuple[float, ...]
    """Training loss at the best rate, mean over seeds."""

    @property
    def level(self) -> bool:
        """Whether the leader is not shown to be better."""
        return self.behind.half is None or self.behind.mean <= self.behind.half


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    r"""How the best rate moves with depth: $p$ in best rate $\sim N^p$."""

    scheme: str
    depths: tuple[int, ...]
    optima: tuple[float, ...]
    """Best rate at each depth, between the rates of the grid by a parabola; mean over seeds (geometric)."""
    power: Interval | None
    """None where the best rate of a depth lies at the edge of its grid, so that only a bound is known."""
    predicted: float | None
    """$a - 1$ for Adam and $2a - 1$ for SGD, where branches are damped like $N^{-a}$; None without a law."""


def spread(values: Sequence[float]) -> Interval:
    mean = statistics.fmean(values)
    if len(values) < 2 or not math.isfinite(mean):
        return Interval(mean=mean, half=None)
    half = student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean=mean, half=half)


def league(finishes: Iterable[Finish], depth: int, base_rate: float) -> tuple[Standing, ...]:
    """Every scheme at that depth, the best first. `base_rate`: the loss of one that learned nothing."""
    groups = _grouped(each for each in finishes if each.depth == depth)
    best = {scheme: _best_rate(cells) for scheme, cells in groups.items()}
    ends = {scheme: _losses(cells, best[scheme]) for scheme, cells in groups.items()}
    order = sorted(groups, key=lambda scheme: statistics.fmean(ends[scheme].values()))
    return tuple(_standing(groups[scheme], best[scheme], ends[order[0]], base_rate) for scheme in order)


def _standing(cells: list[Finish], rate: float, leader: dict[int, float], base_rate: float) -> Standing:
    mine = _losses(cells, rate)
    by_rate = _by_rate(cells)
    rates = [each for each, _ in by_rate]
    lowest = statistics.fmean(mine.values())
    worst = max(base_rate, lowest)
    capped = [min(statistics.fmean(_losses(cells, each).values()), worst) for each in rates]
    return Standing(
        scheme=cells[0].scheme,
        depth=cells[0].depth,
        rate=rate,
        at_edge=rate in (rates[0], rates[-1]),
        loss=spread(list(mine.values())),
        behind=spread([mine[seed] - leader[seed] for seed in mine if seed in leader]),
        sensitivity=statistics.fmean(capped) - lowest if math.isfinite(lowest) else 0.0,
        by_rate=by_rate,
        curve=_mean_curve([cell.curve for cell in cells if cell.rate == rate]),
    )


def transfer(finishes: Iterable[Finish], optimizer: str) -> tuple[Transfer, ...]:
    """For every scheme that was raced at two depths or more."""
    found = []
    for scheme, cells in _grouped(finishes).items():
        depths = sorted({cell.depth for cell in cells})
        if len(depths) < 2:
            continue
        tables = {depth: [cell for cell in cells if cell.depth == depth] for depth in depths}
        seeds = sorted(set.intersection(*({cell.seed for cell in table} for table in tables.values())))
        optima = [[_optimum(tables[depth], seed) for depth in depths] for seed in seeds]
        at_edge = any(_best_rate(table) in _ends(table) for table in tables.values())
        found.append(
            Transfer(
                scheme=scheme,
                depths=tuple(depths),
                optima=tuple(_geometric_mean(column) for column in zip(*optima, strict=True)),
                power=None if at_edge else spread([_power(depths, row) for row in optima]),
                predicted=_predicted(scheme, optimizer),
            )
        )
    return tuple(found)


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def _predicted(scheme: str, optimizer: str) -> float | None:
    a = SCHEMES[scheme].exponent
    if scheme == "pre":  # not in its row, whose rates stay as they are; branches of size 1 have a = 0
        a = 0.0
    return None if a is None else (a - 1 if optimizer == "adam" else 2 * a - 1)


def _power(depths: Sequence[int], optima: Sequence[float]) -> float:
    return statistics.linear_regression([math.log(d) for d in depths], [math.log(o) for o in optima]).slope


def _optimum(cells: Sequence[Finish], seed: int) -> float:
    """The lowest point of the parabola through the best rate and its neighbours, in log rate; at an edge, the edge."""
    points = sorted((math.log(cell.rate), _bad(cell.valid)) for cell in cells if cell.seed == seed)
    at = min(range(len(points)), key=lambda index: points[index][1])
    if at in (0, len(points) - 1) or not math.isfinite(points[at - 1][1] + points[at + 1][1]):
        return math.exp(points[at][0])
    (x0, y0), (x1, y1), (x2, y2) = points[at - 1 : at + 2]
    left, right = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    bend = (right - left) / (x2 - x0)
    return math.exp((x0 + x1) / 2 - left / (2 * bend) if bend > 0 else x1)


def _grouped(finishes: Iterable[Finish]) -> dict[str, list[Finish]]:
    groups: dict[str, list[Finish]] = {}
    for each in finishes:
        groups.setdefault(each.scheme, []).append(each)
    return groups


def _by_rate(cells: Sequence[Finish]) -> tuple[tuple[float, float], ...]:
    rates = sorted({cell.rate for cell in cells})
    return tuple(
        (rate, statistics.fmean(_bad(cell.valid) for cell in cells if cell.rate == rate)) for rate in rates
    )


def _best_rate(cells: Sequence[Finish]) -> float:
    return min(_by_rate(cells), key=lambda pair: pair[1])[0]


def _ends(cells: Sequence[Finish]) -> tuple[float, float]:
    rates = sorted({cell.rate for cell in cells})
    return rates[0], rates[-1]


def _losses(cells: Sequence[Finish], rate: float) -> dict[int, float]:
    return {cell.seed: _bad(cell.held_out) for cell in cells if cell.rate == rate}


def _bad(loss: float) -> float:
    """What is no number is worse than any."""
    return loss if math.isfinite(loss) else math.inf


def _mean_curve(curves: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(statistics.fmean(values) for values in zip(*curves, strict=True))
