"""Gaussian moments of activations against closed forms and published values."""

from __future__ import annotations

import math

import pytest
import torch

from leadline.ops import gaussian
from leadline.ops.gaussian import (
    ACTIVATION_FUNCTIONS,
    COARSE_RULE,
    FINE_RULE,
    NEGATIVE_SLOPES,
    QuadratureRule,
    activation_moments,
    gelu_moments,
    max_slope_square,
)

# Derived: at a kink the coarse rule sees the derivative on a grid of 0.05 standard deviations.
KINK_ERROR = 2e-3


@pytest.mark.parametrize("deviation", [0.1, 1.0, 7.0])
def test_relu_halves_square_and_slope_at_every_scale(deviation):
    moments = activation_moments("relu", 0.0, deviation**2)
    assert moments.square == pytest.approx(0.5 * deviation**2)
    assert moments.slope_square == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("name", "ms", "slope_ms"),
    [
        ("gelu", 0.425221, 0.455851),
        ("silu", 0.355776, 0.379482),
        ("tanh", 0.394294, 0.464403),
        ("sigmoid", 0.293379, 0.044836),
        ("softplus", 0.921246, 0.293379),
        ("mish", 0.452342, 0.479084),
        ("erf", 0.464559, 0.569410),
        ("elu", 0.644945, 0.668102),
        ("selu", 1.0, 1.071599),
    ],
)
def test_unit_gaussian_moments_are_the_known_ones(name, ms, slope_ms):
    moments = activation_moments(name, 0.0, 1.0)
    assert moments.square == pytest.approx(ms, abs=2e-5)
    assert moments.slope_square == pytest.approx(
        slope_ms, abs=KINK_ERROR if name in ("elu", "selu") else 2e-5
    )


@pytest.mark.parametrize("name", ACTIVATION_FUNCTIONS)
def test_an_activation_of_the_table_equals_the_torch_function(name):
    places = torch.linspace(-9.0, 9.0, 73, dtype=torch.float64)
    expected = getattr(torch.nn.functional, name, None) or getattr(torch, name)
    values = torch.tensor([ACTIVATION_FUNCTIONS[name](x) for x in places.tolist()], dtype=torch.float64)
    torch.testing.assert_close(values, expected(places), rtol=1e-12, atol=1e-12)


def test_the_largest_squared_slope_of_the_sigmoid_is_one_sixteenth():
    assert max_slope_square("sigmoid") == pytest.approx(1 / 16)


@pytest.mark.parametrize("name", NEGATIVE_SLOPES)
@pytest.mark.parametrize(
    ("mean", "deviation"), [(0.0, 1.0), (0.7, 0.5), (-2.0, 1.0), (-9.0, 1.0), (1.0, 1e-3)]
)
def test_the_closed_form_of_a_rectifier_agrees_with_integration(name, mean, deviation):
    closed, summed = activation_moments(name, mean, deviation**2), gaussian._integrate(name, mean, deviation)
    assert closed.mean == pytest.approx(summed.mean, rel=1e-3, abs=1e-9)
    assert closed.square == pytest.approx(summed.square, rel=1e-3, abs=1e-9)
    assert closed.slope_square == pytest.approx(summed.slope_square, rel=20 * KINK_ERROR, abs=1e-9)


def test_a_constant_signal_has_the_slope_at_its_value():
    assert activation_moments("leaky_relu", 3.0, 0.0) == (3.0, 9.0, 1.0)
    assert activation_moments("relu", -3.0, 0.0) == (0.0, 0.0, 0.0)


def test_an_unknown_activation_or_a_nan_has_no_moments():
    assert activation_moments("someone_elses", 0.0, 1.0) is None
    assert activation_moments("relu", math.nan, 1.0) is None
    assert max_slope_square("someone_elses") is None


@pytest.mark.parametrize("rule", [FINE_RULE, COARSE_RULE, QuadratureRule(reach=12.0, panels=40, order=12)])
def test_a_rule_integrates_powers_exactly(rule: QuadratureRule):
    points, weights = rule.nodes()
    for power, expected in enumerate((1.0, 0.0, 1.0, 0.0, 3.0, 0.0, 15.0)):
        integral = math.fsum(weight * z**power for z, weight in zip(points, weights, strict=True))
        assert integral == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_legendre_nodes_of_order_three_are_the_known_ones():
    points, weights = zip(*gaussian._legendre_nodes(3), strict=True)
    assert points == pytest.approx((-math.sqrt(0.6), 0.0, math.sqrt(0.6)))
    assert weights == pytest.approx((5 / 9, 8 / 9, 5 / 9))


def test_the_two_rules_agree_on_smooth_activations():
    points, weights = FINE_RULE.nodes()
    for name in ("tanh", "silu", "softplus"):
        function = ACTIVATION_FUNCTIONS[name]
        square = math.fsum(weight * function(z) ** 2 for z, weight in zip(points, weights, strict=True))
        assert activation_moments(name, 0.0, 1.0).square == pytest.approx(square, rel=1e-9)


def test_the_closed_form_of_gelu_agrees_with_the_coarse_rule():
    closed, integrated = gelu_moments(1.0), activation_moments("gelu", 0.0, 1.0)
    assert closed == pytest.approx(integrated, rel=1e-7)


@pytest.mark.parametrize(("mean", "var"), [(math.nan, 1.0), (0.0, math.inf), (0.0, -1.0)])
def test_moments_of_no_distribution_are_unknown(mean: float, var: float):
    assert activation_moments("tanh", 0.0, 1.0) is not None
    assert activation_moments("tanh", mean, var) is None


def test_an_activation_that_is_not_in_the_table_has_neither_moments_nor_a_slope():
    assert activation_moments("unheard", 0.0, 1.0) is None
    assert max_slope_square("unheard") is None
