"""Which tensors can shrink while none grows, and how far: an exact simplex and the least sum of squares."""

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
    r"""A point $c$ with $(Ac)_i \le 0$ for all rows, and negative for each row for which some such point has it so.

    Maximises $\sum_i t_i$ subject to $Ac + t + s = 0$, $0 \le t_i \le 1$, $s \ge 0$: a point that is negative in most
    rows, because the sum of two points of a cone is negative wherever one of them is. The free $c$ is $u - v$ with
    both not negative; the start $c = t = 0$ is feasible.
    """
    rows, width = len(matrix), len(matrix[0])
    # Columns: u (width), v (width), t (rows), s (rows), r (rows; t + r = 1), right-hand side.
    table: list[Row] = []
    for index, row in enumerate(matrix):
        identity = [Fraction(int(index == each)) for each in range(rows)]
        nothing = [Fraction(0)] * rows
        table.append([*row, *(-each for each in row), *identity, *identity, *nothing, Fraction(0)])
    for index in range(rows):
        identity = [Fraction(int(index == each)) for each in range(rows)]
        zeros = [Fraction(0)] * rows
        table.append([*[Fraction(0)] * (2 * width), *identity, *zeros, *identity, Fraction(1)])
    first_slack = 2 * width + rows
    basis = [first_slack + index for index in range(2 * rows)]
    gains = [*[Fraction(0)] * (2 * width), *[Fraction(1)] * rows, *[Fraction(0)] * (2 * rows), Fraction(0)]
    _maximise(table, basis, gains)
    point = [Fraction(0)] * (2 * width)
    for row, column in zip(table, basis, strict=True):
        if column < 2 * width:
            point[column] = row[-1]
    return [point[index] - point[width + index] for index in range(width)]


def _maximise(table: list[Row], basis: list[int], gains: Row) -> None:
    """Pivot until no column promises more; the first that does enters, the first of those that bind leaves (Bland)."""
    while True:
        entering = next((column for column, gain in enumerate(gains[:-1]) if gain > 0), None)
        if entering is None:
            return
        binding = [
            (row[-1] / row[entering], basis[index], index)
            for index, row in enumerate(table)
            if row[entering] > 0
        ]
        leaving = min(binding)[2]  # there is one: all t are bounded, and so is what they gain
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
# $f_i(c)$ is the exponent of tensor $i$ when the generators are taken $c_1, c_2, \dots$ times. By Stiemke's
# lemma tensor
# $i$ can shrink exactly if no weights $y \ge 0$, $y_i > 0$, balance every generator ($\sum_i y_i f_i = 0$).
# Most of it is
# decided by looking at signs; what is left over goes to a small exact simplex.

Rows = dict[str, dict[int, Number]]
"""Exponent of each tensor as a form in the generators."""

MOST_ENTRIES = (
    40_000  # ours: rows x unknowns that the dense simplex takes on (about a second); beyond, it is undecided
)


def find_descent(vectors: Sequence[Mapping[str, int]], counted: Container[str]) -> dict[int, Fraction]:
    """How often to take each generator so that all tensors shrink that can, while no counted one grows.

    Tensors that are not counted (no decay on them) may grow.
    """
    rows: Rows = defaultdict(dict)
    for index, vector in enumerate(vectors):
        for name, exponent in vector.items():
            if name in counted:
                rows[name][index] = exponent
    return descent(dict(rows))


def find_even_descent(vectors: Sequence[Mapping[str, int]], counted: Container[str]) -> dict[int, Fraction]:
    """The same with exponent -1 for every tensor that shrinks, in each connected part where that can be.

    Where it cannot (a product of two that shrink must go with a third), the deepest of the part has -1.
    """
    steps = find_descent(vectors, counted)
    rows: Rows = defaultdict(dict)
    for index, vector in enumerate(vectors):
        for name, exponent in vector.items():
            if name in counted:
                rows[name][index] = exponent
    even: dict[int, Fraction] = {}
    for part in _parts(rows):
        mine = {each: steps.get(each, Fraction(0)) for row in part.values() for each in row}
        even |= _at_one_depth(part, mine)
    return {index: often for index, often in even.items() if often}


def _at_one_depth(part: Rows, steps: Mapping[int, Fraction]) -> dict[int, Fraction]:
    """Solve for steps that take whatever shrinks to -1 and leave the rest, or else scale those given."""
    reached = {name: sum(steps[each] * by for each, by in row.items()) for name, row in part.items()}
    deepest = -min(reached.values(), default=0)
    if not deepest:
        return {}
    system = System()
    depth, times = system.unknown(), {each: system.unknown() for each in steps}
    for name, row in part.items():
        form = {times[each]: by for each, by in row.items()} | ({depth: 1} if reached[name] < 0 else {})
        system.same(system.combination(form), ZERO)
    solution = system.solve()
    by_free = solution.form(depth)
    if not by_free:
        return {each: often / deepest for each, often in steps.items()}
    free, coefficient = next(iter(by_free.items()))
    return {each: Fraction(solution.form(time).get(free, 0)) / coefficient for each, time in times.items()}


def combine_generators(vectors: Sequence[Mapping[str, int]], times: Mapping[int, Any]) -> dict[str, Any]:
    """Exponents when each generator is taken so many times."""
    exponents: dict[str, Any] = {}
    for index, often in times.items():
        for name, exponent in vectors[index].items():
            exponents[name] = exponents.get(name, 0) + often * exponent
    return {name: each for name, each in exponents.items() if each}


def descent(rows: Rows) -> dict[int, Fraction]:
    """How often to take each generator, so that every row that can be negative is, and none is positive."""
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
    """How far the unknown must be pushed to bring this row to -1, whatever the others do to it."""
    rest = sum((step[each] * by for each, by in row.items() if each in step and each != unknown), Fraction(0))
    return (rest + 1) / abs(Fraction(row[unknown]))


def _push_one_sided(rows: Rows) -> list[tuple[int, int, Rows]]:
    """An unknown with the same sign in all its rows can be pushed until all of them are negative: they are done."""
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
    """Unknowns that signs alone prove to be nought are taken out; True if there were any.

    If all terms of a row but one are known not to be negative, that one cannot be positive. If all are, all are nought.
    """
    columns = _columns(rows)
    signs: dict[int, int] = {}  # of unknowns known to be >= 0 (1) or <= 0 (-1)
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
    """What signs do not decide, by linear programming, each connected part for itself."""
    step: dict[int, Fraction] = {}
    for part in _parts(rows):
        unknowns = sorted({unknown for row in part.values() for unknown in row})
        if len(part) * len(unknowns) <= MOST_ENTRIES:
            matrix = [[Fraction(row.get(unknown, 0)) for unknown in unknowns] for row in part.values()]
            step |= dict(zip(unknowns, feasible_descent(matrix), strict=True))
    return step


def _parts(rows: Rows) -> list[Rows]:
    columns, left, found = _columns(rows), set(rows), []
    while left:
        todo, part = [min(left)], {}
        while todo:
            name = todo.pop()
            if name in left:
                left.remove(name)
                part[name] = rows[name]
                todo += [other for unknown in rows[name] for other in columns[unknown]]
        found.append(part)
    return found


def _columns(rows: Rows) -> dict[int, set[str]]:
    columns: dict[int, set[str]] = defaultdict(set)
    for name, row in rows.items():
        for unknown in row:
            columns[unknown].add(name)
    return columns


# The least sum of squares along free directions, $\min_c \sum_i p_i e^{2 f_i(c)}$: what decay really regularises.
#
# $p_i$ is the penalty of tensor $i$, $f_i(c)$ its exponent. The sum is convex in $c$; at its minimum the generators are
# in balance, $\sum_i f_{ij}\, p_i = 0$ for each generator $j$ (for $W_1 \to a W_1$, $W_2 \to W_2 / a$: equal norms).

Matrix = dict[int, dict[int, float]]
PenaltyRows = Mapping[str, Mapping[int, float]]

NEWTON_STEPS = (
    200  # ours: far from the minimum a step lowers a sum of exponentials e-fold, near it the error is squared
)
PRECISE = 1e-12  # derived: relative decrease that double precision can still tell
SINGULAR = 1e-13  # derived: what rounding leaves of a pivot that is nought, relative to what it was
ALMOST_NOTHING = (
    1e-8  # ours: share of the mean penalty that an all-zero tensor counts with, so that a minimum exists
)


def find_balance(vectors: Sequence[Mapping[str, int]], penalties: Mapping[str, float]) -> dict[int, float]:
    """How often to take each generator to bring the sum of these penalties to its least."""
    rows: dict[str, dict[int, float]] = defaultdict(dict)
    for index, vector in enumerate(vectors):
        for name, exponent in vector.items():
            if name in penalties:
                rows[name][index] = float(exponent)
    return balanced(rows, penalties)


def balanced(rows: PenaltyRows, penalties: Mapping[str, float]) -> dict[int, float]:
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


def _total(rows: PenaltyRows, weights: Mapping[str, float], point: Mapping[int, float]) -> float:
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
