"""Sparklines lose nothing: not the extremes, not what has no logarithm."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.report.charts.sparkline import LEVELS, MARKS, legend, mark, sparkline

numbers = st.floats(min_value=1e-300, max_value=1e300)
anything = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))
widths = st.integers(min_value=8, max_value=100)


@given(st.lists(anything, max_size=300), st.integers(min_value=1, max_value=100))
def test_a_line_has_one_character_a_value_until_it_is_full(values, width):
    assert len(sparkline(values, width)) == min(len(values), width)


@given(st.lists(anything, max_size=300), widths)
def test_every_kind_of_value_without_a_logarithm_is_drawn_and_in_the_legend(values, width):
    line = sparkline(values, width)
    needed = {mark(value) for value in values} - {None}
    assert needed == set(line) - set(LEVELS)
    assert needed == {meaning[0] for meaning in legend(values).split("   ") if meaning}


@given(st.lists(anything, max_size=300), numbers.filter(lambda x: x < 1e290), st.data(), widths)
def test_the_smallest_and_the_largest_number_are_drawn_at_bottom_and_top(values, small, data, width):
    for value in (small, small * 1e9):
        values.insert(data.draw(st.integers(0, len(values))), value)
    line = sparkline(values, width)
    assert LEVELS[0] in line
    assert LEVELS[-1] in line


@given(numbers, st.integers(1, 300), widths)
def test_equal_values_make_a_flat_line(value, count, width):
    assert len(set(sparkline([value] * count, width))) == 1


@given(st.lists(st.floats(min_value=1.0, max_value=1.5), min_size=1, max_size=300), widths)
def test_noise_stays_near_the_middle(values, width):
    assert set(sparkline(values, width)) <= set(LEVELS[2:6])


@given(st.lists(numbers, min_size=2, max_size=50, unique=True))
def test_a_larger_number_is_never_drawn_lower(values):
    line = sparkline(sorted(values), 50)
    assert list(line) == sorted(line)


def test_nothing_draws_nothing():
    assert sparkline([], 40) == ""


def test_one_spike_among_a_thousand_blocks_is_seen():
    values = [1.0] * 1000
    values[617] = 1e6
    line = sparkline(values, 40)
    assert line.count(LEVELS[-1]) == 1
    assert abs(line.index(LEVELS[-1]) - 617 * 40 / 1000) <= 1


def test_a_measured_neighbour_is_drawn_before_one_that_was_not_measured():
    line = sparkline([1.0, None] * 500, 40)
    assert line.count("·") == 1


@pytest.mark.parametrize(
    ("value", "sign"),
    [(math.nan, "!"), (math.inf, "∞"), (0.0, "0"), (-0.0, "0"), (-1.0, "−"), (None, "·"), (5e-324, None)],
)
def test_each_kind_of_value_has_its_own_mark(value, sign):
    assert mark(value) == sign
    assert sign is None or sign in MARKS
