"""The exact parts: equations, cone and least penalty, each against a slow and obvious second way."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest

from leadline.readings.symmetry.cone import combine_generators, find_balance, find_descent
from leadline.readings.symmetry.system import ZERO, System, _best_multiple


def dense_rank(rows: list[list[Fraction]]) -> int:
    rows, rank = [list(row) for row in rows], 0
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((index for index in range(rank, len(rows)) if rows[index][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        for index in range(len(rows)):
            if index != rank and rows[index][column]:
                factor = rows[index][column] / rows[rank][column]
                rows[index] = [a - factor * b for a, b in zip(rows[index], rows[rank], strict=True)]
        rank += 1
    return rank


@pytest.mark.parametrize("seed", range(30))
def test_every_unknown_is_solved_and_satisfies_every_equation(seed: int):
    draw = random.Random(seed)
    system, count = System(), 12
    unknowns = [system.unknown() for _ in range(count)]
    equations = []
    for _ in range(draw.randrange(1, 10)):
        form = {
            each: draw.choice([-2, -1, 1, Fraction(1, 2)])
            for each in draw.sample(unknowns, draw.randrange(1, 4))
        }
        equations.append(form)
        system.same(system.combination(form), ZERO)
    solution = system.solve()
    for form in equations:
        left: dict[int, Fraction] = {}
        for unknown, coefficient in form.items():
            for free, by in solution.form(unknown).items():
                left[free] = left.get(free, Fraction(0)) + coefficient * by
        assert not any(left.values())
    free = {each for unknown in unknowns for each in solution.form(unknown)}
    matrix = [[Fraction(form.get(each, 0)) for each in unknowns] for form in equations]
    forms = [[Fraction(solution.form(unknown).get(each, 0)) for each in sorted(free)] for unknown in unknowns]
    assert dense_rank(forms) == count - dense_rank(matrix)


def drawn_vectors(seed: int) -> list[dict[str, int]]:
    draw = random.Random(seed)
    names = [f"p{index}" for index in range(draw.randrange(3, 9))]
    return [
        {
            name: draw.choice([-2, -1, 1, 1])
            for name in draw.sample(names, draw.randrange(1, min(4, len(names))))
        }
        for _ in range(draw.randrange(1, 6))
    ]


@pytest.mark.parametrize("seed", range(80))
def test_the_cone_is_what_linear_programming_finds(seed: int):
    optimize = pytest.importorskip("scipy.optimize")
    vectors = drawn_vectors(seed)
    names = sorted({name for vector in vectors for name in vector})
    matrix = [[float(vector.get(name, 0)) for vector in vectors] for name in names]
    found = combine_generators(vectors, find_descent(vectors, names))
    assert all(each <= 0 for each in found.values())
    width = len(vectors)
    rows = [[*row, *[float(i == j) for j in range(len(names))]] for i, row in enumerate(matrix)]
    bounds = [(None, None)] * width + [(0, 1)] * len(names)
    answer = optimize.linprog(
        [0.0] * width + [-1.0] * len(names), A_ub=rows, b_ub=[0.0] * len(names), bounds=bounds
    )
    expected = {name for name, each in zip(names, answer.x[width:], strict=True) if each > 1e-7}
    assert {name for name, each in found.items() if each < 0} == expected


@pytest.mark.parametrize("seed", range(20))
def test_at_the_smallest_penalty_every_generator_is_balanced(seed: int):
    vectors = drawn_vectors(seed)
    names = {name for vector in vectors for name in vector}
    inert = {
        name for name, each in combine_generators(vectors, find_descent(vectors, names)).items() if each < 0
    }
    penalties = {name: 1.0 + index for index, name in enumerate(sorted(names - inert))}
    moves = combine_generators(vectors, find_balance(vectors, penalties))
    after = {name: each * math.exp(2 * moves.get(name, 0.0)) for name, each in penalties.items()}
    for vector in vectors:
        pull = sum(after.get(name, 0.0) * exponent for name, exponent in vector.items())
        assert abs(pull) < 1e-4 * (sum(after.values()) + 1e-300)
    assert sum(after.values()) <= sum(penalties.values()) * (1 + 1e-9)


def test_two_layers_balance_at_equal_norms():
    moves = combine_generators([{"a": 1, "b": -1}], find_balance([{"a": 1, "b": -1}], {"a": 100.0, "b": 1.0}))
    assert 100 * math.exp(2 * moves["a"]) == pytest.approx(10.0, rel=1e-5)
    assert math.exp(2 * moves["b"]) == pytest.approx(10.0, rel=1e-5)


def test_a_tensor_without_decay_may_grow_while_others_shrink():
    vectors = [{"gain": 1, "weight": -1}]
    assert combine_generators(vectors, find_descent(vectors, {"gain", "weight"})) == {}
    assert combine_generators(vectors, find_descent(vectors, {"weight"}))["weight"] < 0


def test_a_vector_is_subtracted_as_often_as_shortens_the_other_most():
    assert _best_multiple({"a": 4, "b": 1}, {"a": 2}, ["a"]) == 2
    assert _best_multiple({"a": 3}, {"a": 2}, ["a"]) == 0
    assert _best_multiple({"b": 3}, {"a": 2}, ["a"]) == 0
