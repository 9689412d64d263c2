"""The attribution sums to what was measured, and says what theory says."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from leadline import nn as blocks
from leadline.readings.attribution import predict_gains
from leadline.readings.profile import read_profile
from leadline.records import LOSS_BLOCK, Profile

WIDTH = 64


def plain(
    depth: int, activation: type[nn.Module], gain: float | None = None, norm: bool = False
) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(depth):
        linear = nn.Linear(WIDTH, WIDTH)
        if gain is not None:
            nn.init.normal_(linear.weight, std=math.sqrt(gain / WIDTH))
            nn.init.zeros_(linear.bias)
        layers += [linear, nn.LayerNorm(WIDTH), activation()] if norm else [linear, activation()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 4))


class Scaled(nn.Module):
    """Residual blocks whose skip is scaled by a half."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = 0.5 * x + torch.tanh(layer(x))
        return self.head(x)


def profile_of(model: nn.Module, inputs: Tensor | None = None) -> Profile:
    torch.manual_seed(1)
    x = torch.randn(32, WIDTH) if inputs is None else inputs
    return read_profile(leadline.trace(model, x, torch.randint(0, 4, (32,)), F.cross_entropy))[0]


def tokens(model: nn.Module) -> Profile:
    torch.manual_seed(1)
    ids = torch.randint(0, 17, (4, 12))
    return read_profile(
        leadline.trace(model, ids, ids, lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten()))
    )[0]


def language_model(scheme: str) -> nn.Module:
    torch.manual_seed(0)
    return blocks.LanguageModel(17, 32, 2, 4, scheme=scheme)


PROFILES = {
    "sigmoid": lambda: profile_of(plain(8, nn.Sigmoid, 1.0)),
    "layer norm": lambda: profile_of(plain(8, nn.ReLU, 2.0, norm=True)),
    "scaled skip": lambda: profile_of(Scaled(6)),
    "pre-norm language model": lambda: tokens(language_model("pre")),
    "DeepNorm language model": lambda: tokens(language_model("deepnorm")),
}


@pytest.mark.parametrize("name", PROFILES)
def test_the_factors_sum_to_the_measured_change(name):
    profile = PROFILES[name]()
    first, last = profile.blocks[0], profile.blocks[-1]
    inner = profile.attribution.within(range(1, len(profile.blocks)))
    forward = math.log(last.forward_ms / first.forward_ms)
    backward = math.log(first.backward_ms * first.elements / (last.backward_ms * last.elements))
    assert sum(f.forward for f in inner if f.forward is not None) == pytest.approx(forward, abs=1e-6)
    assert sum(f.backward for f in inner if f.backward is not None) == pytest.approx(backward, abs=1e-6)


@pytest.mark.parametrize("name", PROFILES)
def test_with_the_loss_the_factors_give_the_gradient_itself(name):
    profile = PROFILES[name]()
    after = profile.attribution.within((LOSS_BLOCK, *range(1, len(profile.blocks))))
    first = profile.blocks[0]
    total = sum(factor.backward for factor in after if factor.backward is not None)
    assert total == pytest.approx(math.log(first.backward_ms * first.elements), abs=1e-6)


def of_kind(profile: Profile, kind: str, name: str) -> list[float]:
    found = [getattr(factor, name) for factor in profile.attribution.factors if factor.kind == kind]
    return [gain for gain in found if gain is not None]


def test_weights_of_the_default_initialization_pass_a_third():
    weights = of_kind(profile_of(plain(12, nn.ReLU)), "weight", "backward")[:-1]  # without the head
    assert math.exp(sum(weights) / len(weights)) == pytest.approx(1 / 3, rel=0.05)


def test_the_slope_of_the_sigmoid_matches_theory():
    profile = profile_of(plain(12, nn.Sigmoid, 1.0))
    measured, theory = (of_kind(profile, "activation", name) for name in ("backward", "backward_theory"))
    assert theory == pytest.approx(measured, abs=0.15)
    assert max(math.exp(gain) for gain in measured) <= 1 / 16


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_theory_of_weights_activations_and_norms_is_near_the_measurement(direction):
    profile = profile_of(plain(10, nn.GELU, 2.0, norm=True))
    for kind in ("weight", "activation", "norm"):
        measured = sum(of_kind(profile, kind, direction))
        assert sum(of_kind(profile, kind, f"{direction}_theory")) == pytest.approx(measured, abs=0.15 * 10)


def test_a_scaled_skip_is_distinguished_from_its_branch():
    profile = profile_of(Scaled(6))
    skips = [factor for factor in profile.attribution.factors if factor.kind == "skip"]
    assert len(skips) == 6
    assert skips[0].backward is None  # a batch input gets no gradient
    assert [factor.backward for factor in skips[1:]] == pytest.approx([math.log(0.25)] * 5, abs=1e-5)
    assert all(
        gain > 0 for gain in of_kind(profile, "branch", "backward")
    )  # each adds to what its skip passes


def test_a_signal_that_dies_out_is_attributed_as_far_as_it_can_be_followed():
    profile = profile_of(plain(120, nn.Sigmoid, 0.01))
    assert all(
        math.isfinite(gain)
        for factor in profile.attribution.factors
        for gain in (factor.forward, factor.backward)
        if gain is not None
    )


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_a_norm_without_a_gain_returns_unit_size(norm: type[nn.Module]):
    torch.manual_seed(0)
    seen = leadline.trace(
        nn.Sequential(nn.Linear(WIDTH, WIDTH), norm(WIDTH, elementwise_affine=False)),
        torch.randn(32, WIDTH),
        loss=torch.sum,
    )
    (op,) = (each for each in seen.ops if each.name.endswith("_norm"))
    read = seen.values[op.inputs[0]]
    gains = predict_gains(op, read, {})
    assert read.forward is not None
    assert gains.forward == pytest.approx(-math.log(read.forward.ms))
