"""What a race says of each depth: the league table, and how much the rate matters."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

import msgspec

from leadline.forecasting.fit import student
from leadline.report.racing.record import Interval, Standing


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """How one network ended."""

    scheme: str
    depth: int
    rate: float
    seed: int
    valid: float
    held_out: float
    curve: tuple[float, ...]


def spread(values: Sequence[float]) -> Interval:
    mean = statistics.fmean(values)
    if len(values) < 2 or not math.isfinite(mean):
        return Interval(mean=mean, half=None)
    half = student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean=mean, half=half)


def league(finishes: Iterable[Finish], depth: int, base_rate: float) -> tuple[Standing, ...]:
    """Every scheme at that depth, the best first. `base_rate`: the loss of one that learned nothing."""
    groups = by_scheme(each for each in finishes if each.depth == depth)
    best = {scheme: best_rate(cells) for scheme, cells in groups.items()}
    ends = {scheme: losses_at(cells, best[scheme]) for scheme, cells in groups.items()}
    order = sorted(groups, key=lambda scheme: statistics.fmean(ends[scheme].values()))
    return tuple(_standing(groups[scheme], best[scheme], ends[order[0]], base_rate) for scheme in order)


def _standing(cells: list[Finish], rate: float, leader: dict[int, float], base_rate: float) -> Standing:
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
        loss=spread(list(mine.values())),
        behind=spread([mine[seed] - leader[seed] for seed in mine if seed in leader]),
        sensitivity=statistics.fmean(capped) - lowest if math.isfinite(lowest) else 0.0,
        by_rate=by_rate,
        curve=_mean_curve([cell.curve for cell in cells if cell.rate == rate]),
    )


def by_scheme(finishes: Iterable[Finish]) -> dict[str, list[Finish]]:
    groups: dict[str, list[Finish]] = {}
    for each in finishes:
        groups.setdefault(each.scheme, []).append(each)
    return groups


def _by_rate(cells: Sequence[Finish]) -> tuple[tuple[float, float], ...]:
    rates = sorted({cell.rate for cell in cells})
    return tuple(
        (rate, statistics.fmean(ranked(cell.valid) for cell in cells if cell.rate == rate)) for rate in rates
    )


def best_rate(cells: Sequence[Finish]) -> float:
    return min(_by_rate(cells), key=lambda pair: pair[1])[0]


def losses_at(cells: Sequence[Finish], rate: float) -> dict[int, float]:
    return {cell.seed: ranked(cell.held_out) for cell in cells if cell.rate == rate}


def ranked(loss: float) -> float:
    """What is no number is worse than any."""
    return loss if math.isfinite(loss) else math.inf


def _mean_curve(curves: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(statistics.fmean(values) for values in zip(*curves, strict=True))
