"""Critical gains and depth scales against values that were measured or derived elsewhere."""

from __future__ import annotations

import math

import pytest

import leadline
from leadline.readings.limits import MAX_EFOLDS_SGD


def test_relu_is_critical_at_he_initialization():
    assert leadline.critical_gain("relu") == pytest.approx(2.0)
    scale = leadline.depth_scale("relu", weight_variance=2.0)
    assert (scale.phase, scale.chi) == ("critical", pytest.approx(1.0))


def test_the_default_linear_layer_with_relu_keeps_a_sixth_of_the_gradient():
    scale = leadline.depth_scale("relu", weight_variance=1 / 3)
    assert scale.chi == pytest.approx(1 / 6)
    assert scale.phase == "ordered"
    assert scale.trainable_depth == pytest.approx(MAX_EFOLDS_SGD / math.log(6))


@pytest.mark.parametrize(("bias", "weight"), [(0.001, 1.189), (0.01, 1.424), (0.05, 1.761), (0.2, 2.285)])
def test_the_edge_of_chaos_of_tanh(bias: float, weight: float):
    assert leadline.critical_gain("tanh", bias) == pytest.approx(weight, abs=1e-3)


def test_the_usual_gain_of_tanh_is_chaotic():
    scale = leadline.depth_scale("tanh", weight_variance=25 / 9)
    assert scale.phase == "chaotic"
    assert (scale.q, scale.chi) == (pytest.approx(1.178, abs=1e-3), pytest.approx(1.210, abs=1e-3))


@pytest.mark.parametrize(
    ("activation", "bias"), [("relu", 0.0), ("tanh", 0.0), ("tanh", 0.05), ("erf", 0.01)]
)
def test_the_critical_gain_is_critical(activation: str, bias: float):
    scale = leadline.depth_scale(activation, leadline.critical_gain(activation, bias), bias)
    assert (scale.phase, scale.xi) == ("critical", math.inf)


def test_a_diverging_variance_is_reported_as_infinite():
    assert leadline.depth_scale("relu", weight_variance=3.0).q == math.inf
    assert leadline.depth_scale("relu", weight_variance=1.0).q == 0.0


def test_a_weight_variance_of_zero_is_refused():
    with pytest.raises(leadline.InputError, match="weight_variance"):
        leadline.depth_scale("relu", weight_variance=0.0)


@pytest.mark.parametrize(("weight_variance", "q", "chi"), [(1.0, 0.0, 1.0), (1.0005, 2.5e-4, 1.0)])
def test_a_variance_that_falls_for_thousands_of_layers_is_followed_to_where_it_ends(weight_variance, q, chi):
    r"""Near 0, $\tanh$ maps $q$ to $\sigma_w^2 (q - 2q^2)$, so that $q^* \to (1 - 1/\sigma_w^2)/2$ and $\chi \to 1$."""
    found = leadline.depth_scale("tanh", weight_variance)
    assert found.q == pytest.approx(q, rel=0.01)
    assert found.chi == pytest.approx(chi, abs=1e-5)
    assert found.xi == math.inf
