"""The mutants are real changes, and a test that would fail notices them."""

import ast

import pytest

from benchmarks.mutation import _places, mutant, sample

TEXT = "LIMIT = 6.0\n\n\ndef far(x):\n    return x > LIMIT and not x - 1 == 2\n"


def test_every_place_gives_another_program():
    count = sum(1 for _ in _places(ast.parse(TEXT)))
    made = [mutant(TEXT, number) for number in range(count)]
    assert len({text for _, text in made}) == count == 8
    assert all(ast.dump(ast.parse(text)) != ast.dump(ast.parse(TEXT)) for _, text in made)


@pytest.mark.parametrize("what", ["x > LIMIT -> x >= LIMIT", "x - 1 -> x + 1", "6.0 -> 9.0", "2 -> 3"])
def test_a_change_says_what_it_changed(what):
    found = [said.partition(": ")[2] for said, _ in (mutant(TEXT, number) for number in range(8))]
    assert what in found


@pytest.mark.slow
def test_the_sample_is_the_same_each_time_and_of_all_folders():
    first = sample()
    assert [each[1] for each in first] == [each[1] for each in sample()]
    assert {each[0] for each in first} == {"rules", "ops", "symmetry"}
