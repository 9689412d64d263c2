"""Pairs of tokens through attention: causal masks, grouped heads, rotations, and tokens that span few directions."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.readings.theory.field import RandomField, profile_of, reshaped, with_pairs
from tests.support.theory_networks import BATCH, TOKENS, WIDTH, mean_errors, output_of

HEADS = 4


class CausalAttention(nn.Module):
    """Causal attention with weights of unit gain, with a group of query heads for each of a few key heads."""

    def __init__(self, key_heads: int = HEADS, *, flat: bool = False) -> None:
        super().__init__()
        inner = WIDTH * key_heads // HEADS
        self.flat, self.key_heads = flat, key_heads
        self.query, self.key, self.value = (nn.Linear(WIDTH, n, bias=False) for n in (WIDTH, inner, inner))
        for layer in (self.query, self.key, self.value):
            nn.init.normal_(layer.weight, std=WIDTH**-0.5 * (1.0 if layer is self.value else 0.3))

    def forward(self, x: Tensor) -> Tensor:
        read = x.reshape(-1, WIDTH) if self.flat else x
        q, k, v = (layer(read).view(*x.shape[:2], -1) for layer in (self.query, self.key, self.value))
        q, k, v = (each.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for each in (q, k, v))
        grouped = self.key_heads < HEADS
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return x + out.transpose(1, 2).flatten(2)


class Stack(nn.Module):
    """Two normalized layers of causal attention."""

    def __init__(self, key_heads: int = HEADS, *, flat: bool = False) -> None:
        super().__init__()
        self.first, self.second = (CausalAttention(key_heads, flat=flat) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = F.rms_norm(self.first(F.rms_norm(x, (WIDTH,))), (WIDTH,))
        return self.second(x)


@pytest.mark.parametrize("place", [0, 1])
def test_causal_queries_and_keys_have_the_gradient_of_pairs_of_tokens(place: int):
    # independent keys and values would leave out 16 % of the gradient of the queries
    _, backward = mean_errors(CausalAttention, lambda seen: output_of(seen, "linear", place), draws=8)
    assert abs(backward) < math.log(1.08)


@pytest.mark.parametrize("place", [3, 4])
def test_a_second_causal_layer_has_the_gradient_of_tokens_that_share_their_past(place: int):
    _, backward = mean_errors(Stack, lambda seen: output_of(seen, "linear", place), draws=8)
    assert abs(backward) < math.log(1.15)


@pytest.mark.parametrize("flat", [False, True])
def test_what_tokens_share_survives_grouped_heads_and_merged_samples(flat: bool):
    # two layers apart, tokens that were taken as independent would give 20 % less
    shape = (4, TOKENS, WIDTH)
    forward, _ = mean_errors(
        lambda: Stack(2, flat=flat),
        lambda seen: output_of(seen, "scaled_dot_product_attention", 1),
        shape,
        draws=12,
    )
    assert abs(forward) < math.log(1.12)


def test_merged_axes_keep_the_pairs_of_tokens_until_they_are_split():
    pairs = torch.tensor([[0.5, 0.2, 0.1], [0.2, 1.0, 0.3], [0.1, 0.3, 1.5]], dtype=torch.float64)
    field = RandomField(shape=(4, 3, 8), mean=0.0, ms=1.0, share=(0.25, 0.2, 0.0))
    merged = reshaped(with_pairs(field, 1, pairs), (12, 8))
    again = profile_of(reshaped(merged, (4, 3, 8)))
    whole = profile_of(merged)
    assert whole is not None
    assert whole.pairs is not None
    assert float(whole.pairs[0, 3]) == pytest.approx(0.25 * 0.5)
    assert float(whole.pairs[1, 5]) == pytest.approx(0.25)
    assert again is not None
    assert again.axis == 1
    assert again.pairs is not None
    assert torch.allclose(again.pairs, pairs)


class Rotated(CausalAttention):
    """Causal attention whose queries and keys are rotated by their position."""

    def forward(self, x: Tensor) -> Tensor:
        features = WIDTH // HEADS
        frequencies = 10_000.0 ** -(torch.arange(0, features, 2) / features)
        angles = torch.arange(x.shape[1]).float()[:, None] * frequencies
        angles = torch.cat((angles, angles), dim=-1)
        q, k, v = (
            layer(x).unflatten(-1, (-1, features)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        cos, sin = angles.cos(), angles.sin()
        q, k = (each * cos + _half_turn(each) * sin for each in (q, k))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _half_turn(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def test_the_sines_of_a_rotation_hide_the_gradient_of_the_first_keys():
    # a table without positions would give 50 % more: the first key has the largest gradient
    _, backward = mean_errors(Rotated, lambda seen: output_of(seen, "cat", 2), draws=8)
    assert abs(backward) < math.log(1.12)


class Patches(nn.Module):
    """Attention over tokens that are made from fewer numbers than they have features."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.patches = nn.Linear(numbers, WIDTH, bias=False)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(self.patches(x), (WIDTH,))
        q, k, v = (layer(x)[:, None] for layer in (self.query, self.key, self.value))
        return F.scaled_dot_product_attention(q, k, v)[:, 0]


def test_tokens_of_few_directions_add_to_the_gradient_of_queries():
    # 24 numbers instead of 64 independent features: 1 + 63 (1/64 + 1/24) instead of 1 + 63/64
    shape = (BATCH, 64, 24)
    _, backward = mean_errors(lambda: Patches(24), lambda seen: output_of(seen, "linear", 1), shape)
    assert abs(backward) < math.log(1.15)


class SharpAttention(nn.Module):
    """Attention with logits of unit variance, as one op or written out."""

    def __init__(self, *, written: bool) -> None:
        super().__init__()
        self.written = written
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        for layer in (self.query, self.key, self.value):
            nn.init.normal_(layer.weight, std=WIDTH**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        if self.written:
            return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(WIDTH), dim=-1) @ v
        return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]


@pytest.mark.parametrize("written", [False, True])
def test_attention_leans_toward_tokens_whose_keys_match(written: bool):
    # independent keys and values would leave out 25 % for 64 tokens
    name = "matmul" if written else "scaled_dot_product_attention"
    forward, _ = mean_errors(
        lambda: SharpAttention(written=written),
        lambda seen: output_of(seen, name, 1 if written else 0),
        (BATCH, 64, WIDTH),
    )
    assert abs(forward) < math.log(1.07)
