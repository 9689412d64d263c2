r"""Which tensors can shrink while none grows: the largest support of the cone $\{c : f_i(c) \le 0\}$, exactly.

$f_i(c)$ is the exponent of tensor $i$ when the generators are taken $c_1, c_2, \dots$ times. By Stiemke's lemma tensor
$i$ can shrink exactly if no weights $y \ge 0$, $y_i > 0$, balance every generator ($\sum_i y_i f_i = 0$). Most of it is
decided by looking at signs; what is left over goes to a small exact simplex.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from fractions import Fraction
from typing import Any

from leadline.symmetry.simplex import feasible_descent
from leadline.symmetry.system import ZERO, Number, System

Rows = dict[str, dict[int, Number]]
"""Exponent of each tensor as a form in the generators."""

MOST_ENTRIES = (
    40_000  # ours: rows x unknowns that the dense simplex takes on (about a second); beyond, it is undecided
)


def shrinking(vectors: Sequence[Mapping[str, int]], counted: Container[str]) -> dict[int, Fraction]:
    """How often to take each generator so that all tensors shrink that can, while no counted one grows.

    Tensors that are not counted (no decay on them) may grow.
    """
    rows: Rows = defaultdict(dict)
    for index, vector in enumerate(vectors):
        for name, exponent in vector.items():
            if name in counted:
                rows[name][index] = exponent
    return descent(dict(rows))


def evenly(vectors: Sequence[Mapping[str, int]], counted: Container[str]) -> dict[int, Fraction]:
    """The same with exponent -1 for every tensor that shrinks, in each connected part where that can be.

    Where it cannot (a product of two that shrink must go with a third), the deepest of the part has -1.
    """
    steps = shrinking(vectors, counted)
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


def total(vectors: Sequence[Mapping[str, int]], times: Mapping[int, Any]) -> dict[str, Any]:
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
