r"""Moments of pairs of tokens through attention under a causal mask, where row $i$ sees the first $i$ keys.

Attention weights are taken as $1/i$ plus independent deviations, which only change what a row has in common with
itself. All pairs are relative to the second moment of their tensor.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


@lru_cache(maxsize=64)
def _averages(n: int) -> Tensor:
    """The matrix of means over the first $i$ positions."""
    seen = torch.arange(1, n + 1, dtype=torch.float64, device="cpu")
    return torch.ones(n, n, dtype=torch.float64, device="cpu").tril() / seen[:, None]


def averaged_pairs(v: Tensor, squared: Tensor, keep: float) -> Tensor:
    r"""Pairs of $y_i = \sum_j p_{ij} v_j$ under a causal mask, given those of the values.

    Rows with independent weights of mean $1/i$ share $\frac{1}{i i'}\sum_{jj'} v_{jj'}$. One row has $P_2$ of its mean
    square over the visible values, and $1 - P_2$ of what these share on average.
    """
    n = v.shape[0]
    mean = _averages(n)
    pairs = mean @ v @ mean.T
    seen = torch.arange(1, n + 1, dtype=torch.float64, device="cpu")
    own = mean @ v.diagonal()
    apart = (pairs.diagonal() * seen - own) / (seen - 1).clamp_min(1)
    pairs.diagonal().copy_(squared / keep * own + (1 - squared) * apart)
    return pairs


def scattered_pairs(g: Tensor, squared: Tensor, keep: float) -> Tensor:
    r"""Pairs of the gradient $\sum_i p_{ij} g_i$ of values under a causal mask, given those of $g$."""
    n = g.shape[0]
    mean = _averages(n)
    own = g.diagonal()
    seen = torch.arange(1, n + 1, dtype=torch.float64, device="cpu")
    pairs = mean.T @ (g - own.diag()) @ mean
    single = (own * squared / keep / seen).flip(0).cumsum(0).flip(0)
    double = (own * (1 - squared) / (seen * (seen - 1)).clamp_min(1)).flip(0).cumsum(0).flip(0)
    place = torch.arange(n, device="cpu")
    later = torch.maximum(place[:, None], place[None, :])
    extra = double[later]
    extra.diagonal().copy_(single)
    return pairs + extra


# Derived: avoids a division by zero in the first row, which passes no gradient.
MIN_SHARE = 1e-30


class CausalPairs(NamedTuple):
    """Moments of pairs of tokens of the queries, the keys, the values, and the gradient of the output."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    output_gradient: Tensor


def _sharpness(passed: Tensor) -> Tensor:
    r"""The share of a gradient that passes softmax in each row, relative to even weights, $(i - 1)/i^2$."""
    seen = torch.arange(1, len(passed) + 1, dtype=torch.float64, device="cpu")
    even = (seen - 1) / seen.square()
    return torch.where(seen > 1, passed / even.clamp_min(MIN_SHARE), torch.ones_like(even))


def query_gradient_pairs(pairs: CausalPairs, squared: Tensor, passed: Tensor, excess: float) -> Tensor:
    r"""Pairs of $\sum_j g^s_{ij} k_j$ with $g^s_{ij} = \frac1i\, g_i \cdot (v_j - \bar v_i)$, the gradient of the logits.

    With $C$, $K$, $G$ the pairs of values, keys and $g$, $\bar v_i$ the mean over the visible values, and the matrix $A$
    of these means, $E[(v_j - \bar v_i)(v_{j'} - \bar v_{i'})] = C_{jj'} - (AC)_{i'j} - (AC)_{ij'} + (ACA^T)_{ii'}$ and

    $$ E[g^q_i g^q_{i'}] = G_{ii'} \sum_{jj'} A_{ij} A_{i'j'} K_{jj'} E[(v_j - \bar v_i)(v_{j'} - \bar v_{i'})]
       + G_{ii'} e\,a_i a_{i'}. $$
    The second part is that of keys and values that read the same tokens: $e$ is `excess`, the mean squared cosine of
    two tokens, and $a_i = \sum_j A_{ij} (C_{jj} - (AC)_{ij})$. Sharp weights multiply the first part by the share that
    passes softmax and $a_i$ by $(1 - P_2)/(1 - 1/i)$. Tokens that vary in few directions have a large first part.
    """
    mean = _averages(len(passed))
    averages = mean @ pairs.values
    between = averages @ mean.T
    keys = pairs.keys @ mean.T
    crossed = mean @ (averages.T * keys)
    inner = mean @ (pairs.keys * pairs.values) @ mean.T - crossed - crossed.T + between * (mean @ keys)
    inner.diagonal().mul_(_sharpness(passed))
    own = (mean * (pairs.values.diagonal()[None, :] - averages)).sum(1)
    own = own * (1 - squared) / (1 - mean.diagonal()).clamp_min(MIN_SHARE)
    return pairs.output_gradient * (inner + excess * torch.outer(own, own))


def key_gradient_pairs(pairs: CausalPairs, passed: Tensor) -> Tensor:
    r"""Pairs of $\sum_{i \ge j} g^s_{ij} q_i$, in the notation of `query_gradient_pairs`, with $Q$ the pairs of queries:

    $$ E[g^k_j g^k_{j'}] = \sum_{i \ge j,\, i' \ge j'} \frac{G_{ii'} Q_{ii'}}{i i'}
       E[(v_j - \bar v_i)(v_{j'} - \bar v_{i'})]. $$
    """
    n = len(passed)
    mean = _averages(n)
    visible = (mean > 0).to(mean.dtype)
    seen = torch.arange(1, n + 1, dtype=torch.float64, device="cpu")
    weights = pairs.output_gradient * pairs.queries / torch.outer(seen, seen)
    weights.diagonal().mul_(_sharpness(passed))
    averages = mean @ pairs.values
    below = visible.T @ weights
    crossed = (below * averages.T) @ visible
    whole = below @ visible
    return pairs.values * whole - crossed - crossed.T + visible.T @ (weights * (averages @ mean.T)) @ visible
