"""Axes: everything that can lie on one does, and the ticks say where."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.report.charts.svg import even_ticks, fitted, log_ticks, position, thinned

POSITIVE = st.floats(min_value=1e-300, max_value=1e300)
ANY = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))


@given(st.lists(POSITIVE, min_size=1))
def test_every_positive_number_lies_inside_of_its_axis(values):
    scale = fitted(values, "log")
    assert all(0 < scale.place(value) < 1 for value in values)


@given(st.lists(POSITIVE, min_size=1))
def test_an_axis_spans_at_least_a_factor_of_ten(values):
    scale = fitted(values, "log")
    assert scale.high - scale.low >= 1


@given(st.floats(-300, 300), st.floats(0.5, 600))
def test_a_logarithmic_axis_has_a_few_ticks_in_order_inside_of_it(low, span):
    ticks = log_ticks(low, low + span)
    places = [at for at, _ in ticks]
    assert 1 <= len(ticks) <= 8
    assert places == sorted(places)
    assert all(low <= at <= low + span for at in places)


@given(st.floats(-300, 290), st.floats(0.5, 600))
def test_a_label_says_what_its_place_is(low, span):
    for at, label in log_ticks(low, min(low + span, 300)):
        assert math.log10(float(label)) == pytest.approx(at)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_even_ticks_are_round_and_lie_on_the_axis(low, span):
    for at, label in even_ticks(low, low + span):
        assert low - 1e-6 * span <= at <= low + span * (1 + 1e-6)
        assert float(label) == pytest.approx(at, rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_what_has_no_logarithm_has_no_place(value):
    assert position(value, "log") is None


def test_an_axis_with_nothing_on_it_has_no_ticks():
    assert fitted([None, math.nan], "log").ticks() == []


def test_a_share_is_drawn_from_zero_to_one_whatever_it_is():
    labels = [label for _, label in fitted([0.4, 0.41], "share").ticks()]
    assert (labels[0], labels[-1]) == ("0", "1")


@given(st.lists(ANY, min_size=1), st.integers(2, 40))
def test_thinning_keeps_the_ends_of_the_range_and_some_of_what_is_no_number(values, most):
    kept = [values[place] for place in thinned(values, most)]
    assert len(kept) <= max(most, 2)
    finite = [each for each in values if each is not None and math.isfinite(each)]
    strange = [each for each in values if each is not None and not math.isfinite(each)]
    if finite and not strange and None not in values:
        assert {min(finite), max(finite)} <= set(kept)
    if any(each is not None and math.isnan(each) for each in values):
        assert any(each is not None and math.isnan(each) for each in kept)
