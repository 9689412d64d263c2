r"""The least sum of squares along free directions, $\min_c \sum_i p_i e^{2 f_i(c)}$: what decay really regularises.

$p_i$ is the penalty of tensor $i$, $f_i(c)$ its exponent. The sum is convex in $c$; at its minimum the generators are
in balance, $\sum_i f_{ij}\, p_i = 0$ for each generator $j$ (for $W_1 \to a W_1$, $W_2 \to W_2 / a$: equal norms).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

Matrix = dict[int, dict[int, float]]
Rows = Mapping[str, Mapping[int, float]]

NEWTON_STEPS = (
    200  # ours: far from the minimum a step lowers a sum of exponentials e-fold, near it the error is squared
)
PRECISE = 1e-12  # derived: relative decrease that double precision can still tell
SINGULAR = 1e-13  # derived: what rounding leaves of a pivot that is nought, relative to what it was
ALMOST_NOTHING = (
    1e-8  # ours: share of the mean penalty that an all-zero tensor counts with, so that a minimum exists
)


def balancing(vectors: Sequence[Mapping[str, int]], penalties: Mapping[str, float]) -> dict[int, float]:
    """How often to take each generator to bring the sum of these penalties to its least."""
    rows: dict[str, dict[int, float]] = defaultdict(dict)
    for index, vector in enumerate(vectors):
        for name, exponent in vector.items():
            if name in penalties:
                rows[name][index] = float(exponent)
    return balanced(rows, penalties)


def balanced(rows: Rows, penalties: Mapping[str, float]) -> dict[int, float]:
    """How often to take each generator to reach the least penalty, by damped Newton steps.

    Every row must be able to stop its generators (see `cone`); rows without a penalty count with almost nothing.
    """
    rows = {name: row for name, row in rows.items() if row}
    if not rows:
        return {}
    mean = math.fsum(penalties[name] for name in rows) / len(rows) or 1.0
    weights = {name: max(penalties[name], ALMOST_NOTHING * mean) for name in rows}
    point: dict[int, float] = dict.fromkeys(sorted({each for row in rows.values() for each in row}), 0.0)
    now = _total(rows, weights, point)
    for _ in range(NEWTON_STEPS):
        step, slope = _newton(rows, weights, point)
        size = 1.0
        while size > PRECISE:
            trial = {each: at + size * step[each] for each, at in point.items()}
            then = _total(rows, weights, trial)
            if then <= now + 1e-4 * size * slope:  # Armijo's usual constant
                break
            size /= 2
        else:
            return point
        point, before, now = trial, now, then
        if before - now <= PRECISE * before:
            return point
    return point


def _total(rows: Rows, weights: Mapping[str, float], point: Mapping[int, float]) -> float:
    try:
        return math.fsum(weights[name] * math.exp(2 * _exponent(row, point)) for name, row in rows.items())
    except OverflowError:
        return math.inf


def _exponent(row: Mapping[int, float], point: Mapping[int, float]) -> float:
    return sum(by * point[each] for each, by in row.items())


def _newton(
    rows: Rows, weights: Mapping[str, float], point: Mapping[int, float]
) -> tuple[dict[int, float], float]:
    """The Newton step, and the slope of the penalty along it."""
    gradient: dict[int, float] = dict.fromkeys(point, 0.0)
    curvature: Matrix = {each: defaultdict(float) for each in point}
    for name, row in rows.items():
        penalty = weights[name] * math.exp(2 * _exponent(row, point))
        for one, by in row.items():
            gradient[one] += 2 * by * penalty
            for other, also in row.items():
                curvature[one][other] += 4 * by * also * penalty
    step = solve({each: -slope for each, slope in gradient.items()}, curvature)
    return step, sum(gradient[each] * step[each] for each in point)


def solve(right: dict[int, float], matrix: Matrix) -> dict[int, float]:
    """Solve a sparse symmetric positive semi-definite system; what it leaves open is nought.

    The unknown with fewest neighbours is eliminated first, so that chains and stars stay sparse.
    """
    scale = {each: row[each] for each, row in matrix.items()}
    queue = [(len(row), each) for each, row in matrix.items()]
    heapify(queue)
    order: list[int] = []
    while queue:
        neighbours, unknown = heappop(queue)
        if unknown not in scale or neighbours != len(matrix[unknown]):
            continue
        settled = matrix[unknown][unknown] <= SINGULAR * scale.pop(unknown)
        changed = _drop(unknown, matrix) if settled else _eliminate(unknown, right, matrix)
        order += [] if settled else [unknown]
        for other in changed:
            heappush(queue, (len(matrix[other]), other))
    solved: dict[int, float] = dict.fromkeys(matrix, 0.0)
    for unknown in reversed(order):
        row = matrix[unknown]
        rest = sum(by * solved[other] for other, by in row.items() if other != unknown)
        solved[unknown] = (right[unknown] - rest) / row[unknown]
    return solved


def _eliminate(unknown: int, right: dict[int, float], matrix: Matrix) -> list[int]:
    row = matrix[unknown]
    others = [other for other in row if other != unknown]
    for one in others:
        factor = row[one] / row[unknown]
        right[one] -= factor * right[unknown]
        for other in others:
            matrix[one][other] = matrix[one].get(other, 0.0) - factor * row[other]
        del matrix[one][unknown]
    return others


def _drop(unknown: int, matrix: Matrix) -> list[int]:
    others = [other for other in matrix[unknown] if other != unknown]
    for other in others:
        del matrix[other][unknown]
    return others
