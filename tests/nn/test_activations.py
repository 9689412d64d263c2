"""Gaussian moments of activations, and the critical points that follow from them."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from leadline.errors import InputError
from leadline.nn import init
from leadline.nn.activations import ACTIVATIONS, find_activation, gaussian_moments
from leadline.ops.gaussian import gelu_moments

PRINTED = {  # mean, E phi^2, E phi'^2 at N(0,1), computed independently of this code (Gauss-Hermite, numpy)
    "relu": (0.39894, 0.5, 0.5),
    "gelu": (0.28209, 0.425221, 0.455851),
    "silu": (0.20662, 0.355776, 0.379482),
    "tanh": (0.0, 0.394294, 0.464403),
    "sigmoid": (0.5, 0.293379, 0.044836),
    "elu": (0.16052, 0.644945, 0.668102),
    "selu": (0.0, 1.0, 1.071599),
    "softplus": (0.80606, 0.921246, 0.293379),
    "mish": (0.24040, 0.452342, 0.479084),
    "erf": (0.0, 0.464559, 0.569410),
    "hardswish": (0.16622, 0.331567, 0.358532),
}
SAMPLES = 400_000
SIGMAS = 5.0  # a right value fails one comparison in about two million


@pytest.mark.parametrize("name", PRINTED)
def test_quadrature_agrees_with_the_printed_table(name):
    moments = gaussian_moments(name)
    got = (moments.mean, moments.square, moments.slope_square)
    assert got == pytest.approx(
        PRINTED[name], abs=3e-5
    )  # five printed decimals, and selu's rounded constants


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_moments_agree_with_samples_of_the_activation(name):
    q = 1.7
    z = torch.randn(SAMPLES, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * q**0.5
    y = ACTIVATIONS[name](z)
    moments = gaussian_moments(name, q)
    for sample, value in ((y, moments.mean), (y.square(), moments.square)):
        error = float(sample.std()) / SAMPLES**0.5
        assert abs(float(sample.mean()) - value) < SIGMAS * error + 1e-12


@given(q=st.floats(0.01, 50))
def test_closed_form_of_gelu_agrees_with_quadrature(q):
    by_quadrature = gaussian_moments(_gelu_as_stranger, q)
    closed = gelu_moments(q)
    assert closed.square == pytest.approx(by_quadrature.square, rel=1e-9)
    assert closed.slope_square == pytest.approx(by_quadrature.slope_square, rel=1e-9)
    assert closed.mean == pytest.approx(by_quadrature.mean, rel=1e-9)


def _gelu_as_stranger(x):
    return F.gelu(x)


@pytest.mark.parametrize(
    ("bias_variance", "weight_variance"),
    [(0.001, 1.189), (0.01, 1.424), (0.05, 1.761), (0.1, 1.986), (0.2, 2.285)],
)
def test_critical_line_of_tanh_is_the_known_one(bias_variance, weight_variance):
    assert init.critical("tanh", bias_variance).weight_variance == pytest.approx(weight_variance, abs=6e-4)


@pytest.mark.parametrize(
    ("name", "weight_variance", "bias_variance"),
    [
        ("relu", 2.0, 0.0),
        ("gelu", 1.98305826, 0.17292239),
        ("silu", 1.98800468, 0.55514317),
        ("linear", 1.0, 0.0),
    ],
)
def test_critical_points_are_those_of_the_principles_of_deep_learning_theory(
    name, weight_variance, bias_variance
):
    point = init.critical(name)
    assert point.weight_variance == pytest.approx(weight_variance, abs=1e-6)
    assert point.bias_variance == pytest.approx(bias_variance, abs=1e-6)
    assert point.variance_gain == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", ["tanh", "gelu", "silu", "mish", "hardswish", "elu"])
def test_a_critical_point_is_a_fixed_point_with_unit_gradient_gain(name):
    point = init.critical(name, 0.6 if name != "tanh" else 0.1)
    moments = gaussian_moments(name, point.q)
    assert point.weight_variance * moments.slope_square == pytest.approx(1)
    assert point.weight_variance * moments.square + point.bias_variance == pytest.approx(point.q)


def test_selu_has_its_own_fixed_point_and_unit_gradient_gain_there():
    """E phi'^2 = l^2 / 2 + (l a)^2 e^2 cdf(-2), with l = 1.0507 and a = 1.6733 of SELU."""
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    slope = scale**2 / 2 + (scale * alpha) ** 2 * math.exp(2) * math.erfc(2**0.5) / 2
    point = init.critical("selu")
    assert point.q == 1.0
    assert point.weight_variance == pytest.approx(1 / slope, abs=1e-6)
    assert point.bias_variance == pytest.approx(1 - 1 / slope, abs=1e-6)
    assert point.variance_gain < 1


HELD = sorted(ACTIVATIONS.keys() - {"softplus"})  # which has none: E phi^2 > q E phi'^2 everywhere


@pytest.mark.parametrize("name", HELD)
def test_at_its_critical_point_a_deep_stack_keeps_signal_and_gradient(name):
    """The recursion itself, with moments from quantiles of the Gaussian instead of the quadrature."""
    point, count = init.critical(name), 100_000
    z = torch.special.ndtri((torch.arange(count, dtype=torch.float64) + 0.5) / count)
    q, log_gain = point.q, 0.0
    for _ in range(50):
        x = (z * q**0.5).requires_grad_()
        y = find_activation(name)(x)
        (slope,) = torch.autograd.grad(y.sum(), x)
        log_gain += math.log(point.weight_variance * float(slope.square().mean()))
        q = point.weight_variance * float(y.detach().square().mean()) + point.bias_variance
    assert q == pytest.approx(point.q, rel=0.02)
    assert log_gain == pytest.approx(0, abs=0.02)


def test_an_activation_without_a_critical_point_is_refused():
    with pytest.raises(InputError, match="critical point"):
        init.critical("relu", 0.5)  # q = q + 0.5 has no solution


def test_an_unknown_activation_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match="gelu"):
        gaussian_moments("gelou")
