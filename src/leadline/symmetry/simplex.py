"""A small exact simplex method, in fractions and by Bland's rule, so that it is neither rounded nor cycles."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

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
