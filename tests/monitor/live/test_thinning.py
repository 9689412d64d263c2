"""Thinning drops points, and never what stands out."""

from __future__ import annotations

import math
from array import array

from hypothesis import given
from hypothesis import strategies as st

from leadline.monitor.live.messages import evenly_spaced, reduce_rows, row_ranges, thin

NUMBERS = st.lists(st.floats(width=32), min_size=1, max_size=300)


@given(values=NUMBERS, most=st.integers(6, 60))
def test_a_thinned_curve_has_its_ends_extremes_and_non_finite_values(values, most):
    steps = [*range(0, 2 * len(values), 2)]
    fewer, kept = thin(steps, values, most)
    assert len(fewer) <= most + 2
    assert (fewer[0], fewer[-1]) == (steps[0], steps[-1])
    assert fewer == sorted(set(fewer))
    for step, value in zip(fewer, kept, strict=True):
        assert value is values[step // 2]
    finite, left = [list(filter(math.isfinite, each)) for each in (values, kept)]
    assert (min(finite, default=0), max(finite, default=0)) == (min(left, default=0), max(left, default=0))
    assert (len(finite) < len(values)) == (len(left) < len(kept))


def test_a_single_spike_survives_thinning():
    values = [1.0] * 10_000
    values[7777] = 50.0
    assert 50.0 in thin(range(10_000), values, 100)[1]


@given(count=st.integers(1, 500), most=st.integers(2, 100))
def test_evenly_spaced_items_are_in_order_and_include_both_ends(count, most):
    found = evenly_spaced(range(count), most)
    assert len(found) == min(count, most)
    assert (found[0], found[-1]) == (0, count - 1)
    assert found == sorted(set(found))


@given(length=st.integers(1, 500), rows=st.integers(1, 100))
def test_rows_cover_an_axis_once(length, rows):
    covered = [place for first, last in row_ranges(length, rows) for place in range(first, last)]
    assert covered == [*range(length)]


def test_a_row_shows_its_largest_and_a_nan_wins():
    assert reduce_rows([1.0, 5.0, 2.0, 3.0], 4, 2).tolist() == [5.0, 3.0]
    odd = reduce_rows([1.0, math.nan, 2.0, 3.0], 4, 2)
    assert math.isnan(odd[0])
    assert odd[1] == 3.0


def test_unmeasured_labels_are_marked():
    assert reduce_rows(array("f", [1.0]), 3, 9).tolist() == [1.0, -1.0, -1.0]
