"""The waterfall: its parts sum to what was measured, and what they leave is shown."""

import math

import pytest

from leadline.records import LOSS_BLOCK, Attribution, Factor
from leadline.report.html.causes import drawn, splits_of
from tests.support import reports as samples


def shape(*factors, backward=(1e-4, 1e-2, 1.0)):
    return samples.profile([1.0] * 3, backward, attribution=Attribution(factors=factors))


def factor(block, kind, backward, **more):
    return Factor(block=block, kind=kind, backward=backward, **more)


HALF = math.log(1e-1)


def test_the_parts_sum_to_what_was_measured_over_the_blocks_behind_the_first():
    found = splits_of(
        shape(
            factor(0, "weight", -99.0),
            factor(1, "weight", HALF),
            factor(1, "activation", HALF),
            factor(2, "weight", 1.5 * HALF),
            factor(2, "activation", 0.5 * HALF),
            factor(LOSS_BLOCK, "loss", -7.0),
        )
    )
    (split,) = found
    assert [cause.kind for cause in split.causes] == ["weight", "activation"]
    assert split.total == pytest.approx(math.log(1e-4))
    assert split.measured == pytest.approx(split.total)
    assert split.unexplained is None


def test_what_no_factor_accounts_for_is_shown():
    (split,) = splits_of(shape(factor(1, "weight", HALF)))
    assert split.unexplained == pytest.approx(3 * HALF)
    assert "not attributed" in drawn(split)


def test_a_gradient_that_is_no_number_is_not_split():
    assert splits_of(shape(factor(1, "weight", math.nan))) == []


def test_theory_is_drawn_where_all_of_a_kind_have_it():
    with_theory = shape(factor(1, "weight", HALF, backward_theory=HALF), factor(2, "weight", 3 * HALF))
    assert splits_of(with_theory)[0].causes[0].theory is None
    whole = shape(
        factor(1, "weight", HALF, backward_theory=HALF), factor(2, "weight", 3 * HALF, backward_theory=HALF)
    )
    assert splits_of(whole)[0].causes[0].theory == pytest.approx(2 * HALF)
    assert "ll-expected" in drawn(splits_of(whole)[0])


def test_a_product_that_no_float_holds_is_written_as_a_power_of_ten():
    (split,) = splits_of(shape(factor(1, "weight", -2000.0)))
    assert "×10^-869" in drawn(split)
