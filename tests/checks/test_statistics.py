"""Statistics of too few or invalid values: one point has no slope, and only positive values have a logarithm."""

import math

from leadline.checks._statistics import logs, noise, relative_slope, slope


def test_a_slope_needs_two_different_steps():
    assert slope([1.0], [5.0]) == 0.0
    assert slope([2.0, 2.0], [1.0, 3.0]) == 0.0
    assert slope([0.0, 1.0, 2.0], [1.0, 3.0, 5.0]) == 2.0
    assert relative_slope([0.0, 1.0], [1.0, 2.0], 0.0) == 0.0


def test_only_positive_finite_values_have_a_logarithm():
    assert logs([1.0, 0.0, -1.0, math.inf, math.nan, math.e]) == [0.0, 1.0]


def test_one_value_has_no_noise():
    assert noise([3.0]) == 0.0
