"""Gaussian moments of activations against closed forms and published values."""

from __future__ import annotations

import math

import pytest
import torch

from leadline.ops import slopes
from leadline.ops.slopes import slope_of

KINK = 2e-3  # of E[phi'^2] at a kink: the trapezoid sees the derivative on a grid of 0.05 standard deviations


@pytest.mark.parametrize("deviation", [0.1, 1.0, 7.0])
def test_relu_keeps_half_of_everything_at_every_scale(deviation):
    found = slope_of("relu", 0.0, deviation**2)
    assert found.ms == pytest.approx(0.5 * deviation**2)
    assert found.slope_ms == pytest.approx(0.5)


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
    found = slope_of(name, 0.0, 1.0)
    assert found.ms == pytest.approx(ms, abs=2e-5)
    assert found.slope_ms == pytest.approx(slope_ms, abs=KINK if name in ("elu", "selu") else 2e-5)


@pytest.mark.parametrize("name", slopes._FUNCTIONS)
def test_an_activation_of_the_table_is_the_one_that_torch_has(name):
    places = torch.linspace(-9.0, 9.0, 73, dtype=torch.float64)
    expected = getattr(torch.nn.functional, name, None) or getattr(torch, name)
    found = torch.tensor([slopes._FUNCTIONS[name](x) for x in places.tolist()], dtype=torch.float64)
    torch.testing.assert_close(found, expected(places), rtol=1e-12, atol=1e-12)


def test_the_sigmoid_never_passes_more_than_a_sixteenth():
    assert slope_of("sigmoid", 0.0, 1.0).most == pytest.approx(1 / 16)


@pytest.mark.parametrize("name", slopes._BELOW)
@pytest.mark.parametrize(
    ("mean", "deviation"), [(0.0, 1.0), (0.7, 0.5), (-2.0, 1.0), (-9.0, 1.0), (1.0, 1e-3)]
)
def test_the_closed_form_of_two_lines_is_what_integration_comes_to(name, mean, deviation):
    found, summed = slope_of(name, mean, deviation**2), slopes._integrated(name, mean, deviation)
    assert found.ms == pytest.approx(summed.ms, rel=1e-3, abs=1e-9)
    assert found.slope_ms == pytest.approx(summed.slope_ms, rel=20 * KINK, abs=1e-9)
    assert found.most == pytest.approx(summed.most)


def test_a_signal_that_does_not_vary_has_the_slope_of_its_place():
    assert slope_of("leaky_relu", 3.0, 0.0) == (9.0, 1.0, 1.0)
    assert slope_of("relu", -3.0, 0.0) == (0.0, 0.0, 1.0)


def test_what_is_not_known_is_none():
    assert slope_of("someone_elses", 0.0, 1.0) is None
    assert slope_of("relu", math.nan, 1.0) is None
