"""The mutants are real changes, and a test that would fail notices them."""

import ast

import pytest

from benchmarks.mutation import ROOT, TESTS, labels, mutant, sample

TEXT = "LIMIT = 6.0\n\n\ndef far(x):\n    return x > LIMIT and not x - 1 == 2\n"


def test_every_mutation_changes_the_program():
    count = len(labels(TEXT))
    made = [mutant(TEXT, number) for number in range(count)]
    assert len({text for _, text in made}) == count == 8
    assert all(ast.dump(ast.parse(text)) != ast.dump(ast.parse(TEXT)) for _, text in made)


@pytest.mark.parametrize("what", ["x > LIMIT -> x >= LIMIT", "x - 1 -> x + 1", "6.0 -> 9.0", "2 -> 3"])
def test_a_change_says_what_it_changed(what):
    found = [said.partition(": ")[2] for said, _ in (mutant(TEXT, number) for number in range(8))]
    assert what in found


def test_a_place_keeps_its_name_while_others_change():
    longer = "import math\n\nOTHER = 2\n\n\n" + TEXT.replace("6.0", "7.0")
    assert set(labels(TEXT)) - set(labels(longer)) == {"file: 6.0"}


def test_names_of_places_are_unique():
    assert labels("def far(x):\n    return x > 1 or x < 1\n")[-2:] == ["far: x < 1", "far: 1 (2)"]


def test_the_examples_of_a_check_are_left_as_they_are():
    text = "def _example(x):\n    return 2 * x\n\n\n@rule(sick=_example(3))\ndef deep(x):\n    return x > 4\n"
    assert labels(text) == ["deep: x > 4", "deep: 4"]


@pytest.mark.slow
def test_the_sample_is_reproducible_and_covers_all_folders():
    first = sample()
    assert [each[1] for each in first] == [each[1] for each in sample()]
    assert {each[0] for each in first} == set(TESTS)


def test_every_named_test_exists():
    assert [test for tests in TESTS.values() for test in tests if not (ROOT / test).exists()] == []
