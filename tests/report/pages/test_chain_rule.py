"""The waterfall: its parts sum to what was measured, and what they leave is shown."""

import math

import pytest

from leadline.records import LOSS_BLOCK, Attribution, Factor
from leadline.report.charts.bars import draw_bars
from leadline.report.pages.chain_rule import chain_rule_section, gradient_change, gradient_splits
from tests.support import reports as samples


def shape(*factors, backward=(1e-4, 1e-2, 1.0)):
    return samples.profile([1.0] * 3, backward, attribution=Attribution(factors=factors))


def drawing(profile):
    """The waterfall of its first stream."""
    return draw_bars(chain_rule_section(profile).body[0])


def factor(block, kind, backward, **more):
    return Factor(block=block, kind=kind, backward=backward, **more)


HALF = math.log(1e-1)


def test_the_parts_sum_to_what_was_measured_over_the_blocks_after_the_first():
    found = gradient_splits(
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
    assert [cause.kind for cause in split.kinds] == ["weight", "activation"]
    assert split.total == pytest.approx(math.log(1e-4))
    assert split.measured == pytest.approx(split.total)
    assert split.unexplained is None


def test_what_no_factor_accounts_for_is_shown():
    profile = shape(factor(1, "weight", HALF))
    (split,) = gradient_splits(profile)
    assert split.unexplained == pytest.approx(3 * HALF)
    assert "not attributed" in drawing(profile)


def test_a_gradient_that_is_nan_is_not_split():
    assert gradient_splits(shape(factor(1, "weight", math.nan))) == []


def test_theory_is_drawn_where_all_of_a_kind_have_it():
    with_theory = shape(factor(1, "weight", HALF, backward_theory=HALF), factor(2, "weight", 3 * HALF))
    assert gradient_splits(with_theory)[0].kinds[0].theory is None
    whole = shape(
        factor(1, "weight", HALF, backward_theory=HALF), factor(2, "weight", 3 * HALF, backward_theory=HALF)
    )
    assert gradient_splits(whole)[0].kinds[0].theory == pytest.approx(2 * HALF)
    assert "ll-expected" in drawing(whole)


def test_a_product_that_no_float_holds_is_written_as_a_power_of_ten():
    assert "×10^-869" in drawing(shape(factor(1, "weight", -2000.0)))


@pytest.mark.parametrize("values", [(None, 1.0), (0.0, 1.0), (math.inf, 1.0)], ids=str)
def test_a_change_needs_two_positive_numbers(values):
    first, last = (samples.block("x", 1.0, each) for each in values)
    assert gradient_change(first, last) is None
    assert gradient_change(samples.block("a", 1.0, math.e), samples.block("b", 1.0, 1.0)) == pytest.approx(
        1.0
    )
