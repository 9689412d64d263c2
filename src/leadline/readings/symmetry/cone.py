"""Which tensors can shrink while none grows, and the smallest sum of squares along the free directions."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from fractions import Fraction
from heapq import heapify, heappop, heappush
from typing import Any

from leadline.readings.symmetry.system import ZERO, Number, System

Row = list[Fraction]


def feasible_descent(matrix: Sequence[Sequence[Fraction]]) -> list[Fraction]:
    r"""A point $c$ with $(Ac)_i \le 0$ for all rows, and $(Ac)_i < 0$ for every row where that is possible.

    It maximizes $\sum_i t_i$ subject to $Ac + t + s = 0$, $0 \le t_i \le 1$, $s \ge 0$. The maximum is negative in as
    many rows as possible, because the sum of two points of a cone is negative wherever one of them is. The free $c$ is
    $u - v$ with $u, v \ge 0$; the start $c = t = 0$ is feasible.
    """
    rows, width = len(matrix), len(matrix[0])
    # Columns: u (width), v (width), t (rows), s (rows), r (rows; t + r = 1), right-hand side.
    table: list[Row] = []
    for index, row in enumerate(matrix):
        identity = [Fraction(int(index == each)) for each in range(rows)]
        zeros = [Fraction(0)] * rows
        table.append([*row, *(-each for each in row), *identity, *identity, *zeros, Fraction(0)])
    for index in range(rows):
        identity = [Fraction(int(index == each)) for each in range(rows)]
        zeros = [Fraction(0)] * rows
        table.append([*[Fraction(0)] * (2 * width), *identity, *zeros, *identity, Fraction(1)])
    first_slack = 2 * width + rows
    basis = [first_slack + index for index in range(2 * rows)]
    gains = [*[Fraction(0)] * (2 * width), *[Fraction(1)] * rows, *[Fraction(0)] * (2 * rows), Fraction(0)]
    _maximize(table, basis, gains)
    point = [Fraction(0)] * (2 * width)
    for row, column in zip(table, basis, strict=True):
        if column < 2 * width:
            point[column] = row[-1]
    return [point[index] - point[width + index] for index in range(width)]


def _maximize(table: list[Row], basis: list[int], gains: Row) -> None:
    """Pivot until no column improves the sum, by Bland's rule: the first that does enters, the first to bind leaves."""
    while True:
        entering = next((column for column, gain in enumerate(gains[:-1]) if gain > 0), None)
        if entering is None:
            return
        binding = [
            (row[-1] / row[entering], basis[index], index)
            for index, row in enumerate(table)
            if row[entering] > 0
        ]
        leaving = min(binding)[2]  # it exists: all t are bounded, and so is the sum
        _pivot(table, gains, leaving, entering)
        basis[leaving] = entering


def _pivot(table: list[Row], gains: Row, leaving: int, entering: int) -> None:
    scale = table[leaving][entering]
    pivot = table[leaving] = [each / scale for each in table[leaving]]
    for row in (*table, gains):
        factor = row[entering]
        if row is not pivot and factor:
            row[:] = [each - factor * by if by else each for each, by in zip(row, pivot, strict=True)]


# Which tensors can shrink while none grows: the largest support of the cone $\{c : f_i(c) \le 0\}$, exactly.
#
# $f_i(c)$ is the exponent of tensor $i$ when the generators are applied $c_1, c_2, \dots$ times. By Stiemke's lemma
# tensor $i$ can shrink exactly if no weights $y \ge 0$, $y_i > 0$, balance every generator ($\sum_i y_i f_i = 0$).
# Signs decide most cases; a small exact simplex decides the rest.

Rows = dict[str, dict[int, Number]]
"""Exponent of each tensor as a form in the generators."""

# Heuristic: rows times unknowns that the dense simplex solves in about a second; larger parts stay undecided.
MAX_SIMPLEX_ENTRIES = 40_000


def find_descent(vectors: Sequence[Mapping[str, int]], counted: Container[str]) -> dict[int, Fraction]:
    """How often to apply each generator so that every tensor shrinks that can, while no counted one grows.

    Tensors that are not counted (those without decay) may grow.
    """
    return descent(_rows(vectors, counted))


def find_even_descent(vectors: Sequence[Mapping[str, int]], counted: Container[str]) -> dict[int, Fraction]:
    """As `find_descent`, with exponent -1 for every tensor that shrinks, in each connected part where that is possible.

    Where it is not (the product of two that shrink must follow a third), the smallest exponent of the part is -1.
    """
    steps = find_descent(vectors, counted)
    rows = _rows(vectors, counted)
    even: dict[int, Fraction] = {}
    for part in _parts(rows):
        mine = {each: steps.get(each, Fraction(0)) for row in part.values() for each in row}
        even |= _even_steps(part, mine)
    return {index: times for index, times in even.items() if times}


def _rows(vectors: Sequence[Mapping[str, int]], counted: Container[str]) -> Rows:
    rows: Rows = defaultdict(dict)
    for index, vector in enumerate(vectors):
        for name, exponent in vector.items():
            if name in counted:
                rows[name][index] = exponent
    return dict(rows)


def _even_steps(part: Rows, steps: Mapping[int, Fraction]) -> dict[int, Fraction]:
    """Steps that take every tensor that shrinks to -1 and leave the rest; else the given steps, scaled."""
    reached = {name: sum(steps[each] * by for each, by in row.items()) for name, row in part.items()}
    deepest = -min(reached.values(), default=0)
    if not deepest:
        return {}
    system = System()
    depth, unknowns = system.unknown(), {each: system.unknown() for each in steps}
    for name, row in part.items():
        form = {unknowns[each]: by for each, by in row.items()} | ({depth: 1} if reached[name] < 0 else {})
        system.same(system.combination(form), ZERO)
    solution = system.solve()
    by_free = solution.form(depth)
    if not by_free:
        return {each: times / deepest for each, times in steps.items()}
    free, coefficient = next(iter(by_free.items()))
    return {
        each: Fraction(solution.form(unknown).get(free, 0)) / coefficient
        for each, unknown in unknowns.items()
    }


def combine_generators(vectors: Sequence[Mapping[str, int]], times: Mapping[int, Any]) -> dict[str, Any]:
    """Exponents of all tensors when each generator is applied so many times."""
    exponents: dict[str, Any] = {}
    for index, count in times.items():
        for name, exponent in vectors[index].items():
            exponents[name] = exponents.get(name, 0) + count * exponent
    return {name: each for name, each in exponents.items() if each}


def descent(rows: Rows) -> dict[int, Fraction]:
    """How often to apply each generator so that every row that can be negative is, and none is positive."""
    rows = {name: dict(row) for name, row in rows.items() if row}
    pushes: list[tuple[int, int, dict[str, dict[int, Number]]]] = []
    while True:
        pushes += _push_one_sided(rows)
        if not _drop_fixed(rows):
            break
    step = _core(rows)
    for unknown, sign, taken in reversed(pushes):
        step[unknown] = -sign * max(_push(row, unknown, step) for row in taken.values())
    return step


def _push(row: Mapping[int, Number], unknown: int, step: Mapping[int, Fraction]) -> Fraction:
    """How far the unknown must move to bring this row to -1, given the steps of the others."""
    rest = sum((step[each] * by for each, by in row.items() if each in step and each != unknown), Fraction(0))
    return (rest + 1) / abs(Fraction(row[unknown]))


def _push_one_sided(rows: Rows) -> list[tuple[int, int, Rows]]:
    """Remove rows that one unknown can make negative: it has the same sign in all of its rows."""
    columns = _columns(rows)
    pushes = []
    todo = sorted(columns)
    while todo:
        unknown = todo.pop()
        names = columns[unknown]
        signs = {rows[name][unknown] > 0 for name in names}
        if len(signs) != 1:
            continue
        taken = {name: rows.pop(name) for name in sorted(names)}
        pushes.append((unknown, 1 if signs.pop() else -1, taken))
        touched = {each for row in taken.values() for each in row}
        for name, row in taken.items():
            for each in row:
                columns[each].discard(name)
        todo += sorted(touched)
    return pushes


def _drop_fixed(rows: Rows) -> bool:
    """Remove unknowns that must be zero by their signs; True if there were any.

    If all terms of a row except one cannot be negative, that one cannot be positive. If none can be negative, all are
    zero.
    """
    columns = _columns(rows)
    signs: dict[int, int] = {}  # 1 for unknowns known to be >= 0, -1 for those known to be <= 0
    fixed: set[int] = set()
    todo = list(rows)
    while todo:
        row = {each: by for each, by in rows[todo.pop()].items() if each not in fixed}
        loose = [each for each, by in row.items() if signs.get(each, 0) * by <= 0]
        changed: list[int] = []
        if row and not loose:
            changed = list(row)
            fixed.update(row)
        elif len(loose) == 1:
            (unknown,) = loose
            sign = -1 if row[unknown] > 0 else 1
            if signs.get(unknown) == -sign:
                fixed.add(unknown)
                changed = [unknown]
            elif unknown not in signs:
                signs[unknown] = sign
                changed = [unknown]
        todo += [name for each in changed for name in columns[each]]
    for name in list(rows):
        rows[name] = {each: by for each, by in rows[name].items() if each not in fixed}
        if not rows[name]:
            del rows[name]
    return bool(fixed)


def _core(rows: Rows) -> dict[int, Fraction]:
    """The steps that signs do not decide, by linear programming, one connected part at a time."""
    step: dict[int, Fraction] = {}
    for part in _parts(rows):
        unknowns = sorted({unknown for row in part.values() for unknown in row})
        if len(part) * len(unknowns) <= MAX_SIMPLEX_ENTRIES:
            matrix = [[Fraction(row.get(unknown, 0)) for unknown in unknowns] for row in part.values()]
            step |= dict(zip(unknowns, feasible_descent(matrix), strict=True))
    return step


def _parts(rows: Rows) -> list[Rows]:
    """The connected parts: rows that share unknowns."""
    columns, left, parts = _columns(rows), set(rows), []
    while left:
        todo, part = [min(left)], {}
        while todo:
            name = todo.pop()
            if name in left:
                left.remove(name)
                part[name] = rows[name]
                todo += [other for unknown in rows[name] for other in columns[unknown]]
        parts.append(part)
    return parts


def _columns(rows: Rows) -> dict[int, set[str]]:
    columns: dict[int, set[str]] = defaultdict(set)
    for name, row in rows.items():
        for unknown in row:
            columns[unknown].add(name)
    return columns


# The smallest sum of squares along free directions, $\min_c \sum_i p_i e^{2 f_i(c)}$: what decay really regularizes.
#
# $p_i$ is the penalty of tensor $i$, $f_i(c)$ its exponent. The sum is convex in $c$; at its minimum the generators are
# in balance, $\sum_i f_{ij}\, p_i = 0$ for each generator $j$ (for $W_1 \to a W_1$, $W_2 \to W_2 / a$: equal norms).

Matrix = dict[int, dict[int, float]]
PenaltyRows = Mapping[str, Mapping[int, float]]

# Heuristic: far from the minimum a step divides a sum of exponentials by e, near it the error is squared.
MAX_NEWTON_STEPS = 200

# Derived: the smallest relative decrease that double precision resolves after a sum.
MIN_DECREASE = 1e-12

# Derived: what rounding leaves of a pivot that is zero, relative to its first value.
MIN_PIVOT = 1e-13

# Heuristic: the share of the mean penalty that a tensor of zeros counts with, so that a minimum exists.
MIN_PENALTY_SHARE = 1e-8

# Cited: the usual constant of Armijo's rule for a sufficient decrease.
ARMIJO_CONSTANT = 1e-4


def find_balance(vectors: Sequence[Mapping[str, int]], penalties: Mapping[str, float]) -> dict[int, float]:
    """How often to apply each generator to minimize the sum of these penalties."""
    rows: dict[str, dict[int, float]] = defaultdict(dict)
    for index, vector in enumerate(vectors):
        for name, exponent in vector.items():
            if name in penalties:
                rows[name][index] = float(exponent)
    return minimize_penalty(rows, penalties)


def minimize_penalty(rows: PenaltyRows, penalties: Mapping[str, float]) -> dict[int, float]:
    """How often to apply each generator to minimize the penalty, by damped Newton steps.

    No row may be able to shrink while none grows (see `descent`): then there would be no minimum.
    """
    rows = {name: row for name, row in rows.items() if row}
    if not rows:
        return {}
    mean = math.fsum(penalties[name] for name in rows) / len(rows) or 1.0
    weights = {name: max(penalties[name], MIN_PENALTY_SHARE * mean) for name in rows}
    point: dict[int, float] = dict.fromkeys(sorted({each for row in rows.values() for each in row}), 0.0)
    now = _penalty(rows, weights, point)
    for _ in range(MAX_NEWTON_STEPS):
        step, slope = _newton(rows, weights, point)
        size = 1.0
        while size > MIN_DECREASE:
            trial = {each: at + size * step[each] for each, at in point.items()}
            then = _penalty(rows, weights, trial)
            if then <= now + ARMIJO_CONSTANT * size * slope:
                break
            size /= 2
        else:
            return point
        point, before, now = trial, now, then
        if before - now <= MIN_DECREASE * before:
            return point
    return point


def _penalty(rows: PenaltyRows, weights: Mapping[str, float], point: Mapping[int, float]) -> float:
    try:
        return math.fsum(weights[name] * math.exp(2 * _exponent(row, point)) for name, row in rows.items())
    except OverflowError:
        return math.inf


def _exponent(row: Mapping[int, float], point: Mapping[int, float]) -> float:
    return sum(by * point[each] for each, by in row.items())


def _newton(
    rows: PenaltyRows, weights: Mapping[str, float], point: Mapping[int, float]
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
    """Solve a sparse symmetric positive semi-definite system; unknowns that it leaves open are zero.

    The unknown with the fewest neighbors is eliminated first, so that chains and stars stay sparse.
    """
    scale = {each: row[each] for each, row in matrix.items()}
    queue = [(len(row), each) for each, row in matrix.items()]
    heapify(queue)
    order: list[int] = []
    while queue:
        neighbors, unknown = heappop(queue)
        if unknown not in scale or neighbors != len(matrix[unknown]):
            continue
        singular = matrix[unknown][unknown] <= MIN_PIVOT * scale.pop(unknown)
        changed = _drop(unknown, matrix) if singular else _eliminate(unknown, right, matrix)
        order += [] if singular else [unknown]
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
