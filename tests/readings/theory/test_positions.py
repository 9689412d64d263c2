"""Positions that differ: class tokens, causal masks, tokens that keys and values share, and weights that sum to one."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.readings.theory.position_profile import (
    MAX_PROFILE_LENGTH,
    mixed,
    multiplied,
    normalized_profile,
    raised,
    regrouped,
    split_pairs,
)
from leadline.readings.theory.rotation import rotation_profile
from leadline.records import Stats, Value
from tests.support.theory_networks import BATCH, WIDTH, mean_errors, output_of


class ClassToken(nn.Module):
    """A small class token before the patches; only its output counts."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, WIDTH))
        self.patches, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 16)

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), self.patches(x)], dim=1)
        return self.head(self.norm(tokens)[:, 0])


def test_the_gradient_of_a_class_token_is_divided_by_its_own_scale():
    # as a mean over all positions, the gradient would be divided by the variance of the patches, 800 times larger
    _, backward = mean_errors(ClassToken, lambda seen: output_of(seen, "cat"))
    assert abs(backward) < math.log(1.15)


class CausalStack(nn.Module):
    """Layers of causal attention between norms, with values alone: queries and keys are zero."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.values = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for value, norm in zip(self.values, self.norms, strict=True):
            v = value(norm(x)).unsqueeze(1)
            still = torch.zeros_like(v)
            x = F.scaled_dot_product_attention(still, still, v, is_causal=True).squeeze(1)
        return x


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_stack_of_causal_averages_follows_the_covariance_of_positions(layer: int):
    forward, backward = mean_errors(
        lambda: CausalStack(3), lambda seen: output_of(seen, "scaled_dot_product_attention", layer)
    )
    assert abs(forward) < math.log(1.1)
    assert abs(backward) < math.log(1.15)


@pytest.mark.parametrize("layer", [1, 2])
def test_the_first_values_of_a_causal_mask_get_the_gradient_of_all_later_positions(layer: int):
    _, backward = mean_errors(lambda: CausalStack(3), lambda seen: output_of(seen, "unsqueeze", layer))
    assert abs(backward) < math.log(1.2)


class Attention(nn.Module):
    """Attention over tokens of few features, as one op or written out."""

    def __init__(self, *, written: bool) -> None:
        super().__init__()
        self.written = written
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        if self.written:
            return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(WIDTH), dim=-1) @ v
        return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]


@pytest.mark.parametrize("written", [False, True])
def test_keys_and_values_of_one_token_add_to_the_gradient_of_queries(written: bool):
    # independent keys and values would leave out a factor 1 + 127/64
    tokens = 128
    _, backward = mean_errors(
        lambda: Attention(written=written), lambda seen: output_of(seen, "linear"), (BATCH, tokens, WIDTH)
    )
    assert abs(backward) < math.log(1.15)


class SmallTokenAmongKeys(nn.Module):
    """Attention to a class token whose value is near the mean of all values, and whose key a norm scales up."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, WIDTH))
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), x * 1.0], dim=1)
        q, k, v = self.query(x), self.key(F.layer_norm(tokens, (WIDTH,))), self.value(tokens)
        return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]


def test_a_key_gets_the_less_gradient_the_nearer_its_value_is_to_the_mean_of_all_values():
    # if all keys got the same, what the norm makes of the key of the class token would be 6 times as large
    _, backward = mean_errors(SmallTokenAmongKeys, lambda seen: output_of(seen, "cat"))
    assert abs(backward) < math.log(1.15)


class NormedKeys(nn.Module):
    """Attention of sharp logits, with keys that pass a written norm."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        k = self.key(x)
        k = k * torch.rsqrt(k.pow(2).mean(-1, keepdim=True) + 1e-6)
        q = F.layer_norm(self.query(x), (WIDTH,))
        return F.scaled_dot_product_attention(q[:, None], k[:, None], self.value(x)[:, None])[:, 0]


def test_the_gradient_of_the_scale_of_keys_counts_that_weights_grow_with_logits():
    # gradients that were independent of the logits would give 1/3 of it
    _, backward = mean_errors(NormedKeys, lambda seen: output_of(seen, "rsqrt"))
    assert abs(backward) < math.log(1.25)


class SumToOne(nn.Module):
    """Positive weights divided by their sum, as a router does with those of the chosen experts."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.sigmoid(self.score(x))
        return weights / weights.sum(-1, keepdim=True)


def test_weights_that_sum_to_one_lose_the_common_part_of_their_gradient():
    _, backward = mean_errors(SumToOne, lambda seen: output_of(seen, "sigmoid"))
    assert abs(backward) < math.log(1.1)


def test_profiles_keep_the_mean_of_what_they_describe():
    mean_size, profile = normalized_profile(1, [1.0, 2.0, 3.0, 6.0])
    assert profile is not None
    assert mean_size == 3.0
    assert math.isclose(sum(profile.weights), len(profile.weights))
    factor, square = multiplied(profile, profile)
    powered = raised(profile, 2.0)
    assert square is not None
    assert powered[1] is not None
    assert math.isclose(factor, powered[0])
    assert square.weights == pytest.approx(powered[1].weights)
    assert mixed([(1.0, profile), (1.0, None)]) is not None
    assert normalized_profile(0, [2.0, 2.0])[1] is None


def test_a_profile_survives_merging_two_axes_and_splitting_them_again():
    _, profile = normalized_profile(1, [1.0, 2.0, 3.0])
    assert profile is not None
    flat = regrouped(profile, (4, 3), (12,), 0)
    assert flat is not None
    again = regrouped(flat, (12,), (4, 3), 0)
    assert again is not None
    assert again.axis == 1
    assert again.weights == pytest.approx(profile.weights)


def test_what_has_no_length_or_is_longer_than_the_limit_has_no_profile():
    longer = [1.0, 3.0] * MAX_PROFILE_LENGTH
    assert normalized_profile(0, []) == (1.0, None)
    assert normalized_profile(0, longer) == (2.0, None)
    _, profile = normalized_profile(1, [1.0, 2.0, 3.0])
    assert profile is not None
    assert raised(profile, 0.0) == (1.0, None)
    assert split_pairs(profile, 1, 3) is None
    assert regrouped(profile, (MAX_PROFILE_LENGTH, 3), (3 * MAX_PROFILE_LENGTH,), 0) is None


ANGLES = torch.outer(torch.arange(16.0), 0.25 ** torch.arange(4.0))


@pytest.mark.parametrize(
    ("angles", "found"),
    [
        pytest.param(ANGLES, True, id="positions times a geometric series"),
        pytest.param(ANGLES + 1.0, False, id="the first position is turned too"),
        pytest.param(ANGLES[:, 0], False, id="one frequency"),
        pytest.param(
            torch.outer(torch.arange(16.0), torch.tensor([3.0, 1.5, 0.0, 0.0])), False, id="no series"
        ),
    ],
)
def test_only_tables_of_rotations_have_a_profile_by_position(angles: Tensor, found: bool):
    def value_of(tensor: Tensor) -> Value:
        zeros = float((tensor == 0).float().mean())
        stats = Stats(
            mean=float(tensor.mean()),
            ms=float(tensor.square().mean()),
            abs_max=float(tensor.abs().max()),
            zero_share=zeros,
            count=tensor.numel(),
            non_finite=0,
        )
        return Value(id=0, shape=tuple(tensor.shape), dtype="float32", forward=stats)

    assert (rotation_profile("sin", value_of(angles), value_of(angles.sin())) is not None) == found
