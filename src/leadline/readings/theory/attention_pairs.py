r"""Moments of pairs of tokens through attention: under a causal mask, or where tokens differ without one.

Attention weights are taken as even over the $n_i$ keys that row $i$ sees, plus independent deviations, which only
change what a row has in common with itself. All pairs are relative to the second moment of their tensor. $A$ is the
matrix of even weights, $A_{ij} = 1/n_i$ for the keys that row $i$ sees.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

# Derived: avoids a division by zero in rows with one key, which pass no gradient.
MIN_SHARE = 1e-30


class AttentionRows(NamedTuple):
    """What is known of the attention weights of each row."""

    even: Tensor
    """The matrix $A$ of even weights, queries by keys."""
    squared: Tensor
    """$P_2 = E\\sum_j p_j^2$ of each row."""
    passed: Tensor
    """The share of a gradient that passes softmax in each row."""
    keep: float
    """The probability that dropout keeps a weight."""


class AttentionPairs(NamedTuple):
    """Moments of pairs of tokens of the queries, the keys, the values, and the gradient of the output."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    output_gradient: Tensor


@lru_cache(maxsize=64)
def causal_weights(n: int) -> Tensor:
    """Even weights where row $i$ sees the first $i$ keys."""
    seen = torch.arange(1, n + 1, dtype=torch.float64, device="cpu")
    return torch.ones(n, n, dtype=torch.float64, device="cpu").tril() / seen[:, None]


@lru_cache(maxsize=64)
def full_weights(queries: int, keys: int) -> Tensor:
    """Even weights where every row sees all keys."""
    return torch.full((queries, keys), 1 / keys, dtype=torch.float64, device="cpu")


def _visible(rows: AttentionRows) -> Tensor:
    return (rows.even > 0).to(rows.even.dtype)


def averaged_pairs(v: Tensor, rows: AttentionRows) -> Tensor:
    r"""Pairs of $y_i = \sum_j p_{ij} v_j$, given those of the values.

    Rows with independent weights of mean $1/n_i$ share $\frac{1}{n_i n_{i'}}\sum_{jj'} v_{jj'}$. One row has $P_2$ of
    its mean square over the visible values, and $1 - P_2$ of what these share on average.
    """
    pairs = rows.even @ v @ rows.even.T
    seen = _visible(rows).sum(1)
    own = rows.even @ v.diagonal()
    apart = (pairs.diagonal() * seen - own) / (seen - 1).clamp_min(1)
    pairs.diagonal().copy_(rows.squared / rows.keep * own + (1 - rows.squared) * apart)
    return pairs


def scattered_pairs(g: Tensor, rows: AttentionRows) -> Tensor:
    r"""Pairs of the gradient $\sum_i p_{ij} g_i$ of values, given those of $g$."""
    own, visible = g.diagonal(), _visible(rows)
    seen = visible.sum(1)
    pairs = rows.even.T @ (g - own.diag()) @ rows.even
    double = own * (1 - rows.squared) / (seen * (seen - 1)).clamp_min(1)
    extra = visible.T @ (double[:, None] * visible)
    extra.diagonal().copy_(visible.T @ (own * rows.squared / rows.keep / seen))
    return pairs + extra


def _sharpness(rows: AttentionRows) -> Tensor:
    r"""The share of a gradient that passes softmax in each row, relative to even weights, $(n_i - 1)/n_i^2$."""
    seen = _visible(rows).sum(1)
    even = (seen - 1) / seen.square()
    return torch.where(seen > 1, rows.passed / even.clamp_min(MIN_SHARE), torch.ones_like(even))


def query_gradient_pairs(pairs: AttentionPairs, rows: AttentionRows, excess: float) -> Tensor:
    r"""Pairs of $\sum_j g^s_{ij} k_j$; logits have the gradient $g^s_{ij} = A_{ij}\, g_i \cdot (v_j - \bar v_i)$.

    With $C$, $K$, $G$ the pairs of values, keys and $g$, and $\bar v_i$ the mean over the visible values,
    $E[(v_j - \bar v_i)(v_{j'} - \bar v_{i'})] = C_{jj'} - (AC)_{i'j} - (AC)_{ij'} + (ACA^T)_{ii'}$ and

    $$ E[g^q_i g^q_{i'}] = G_{ii'} \sum_{jj'} A_{ij} A_{i'j'} K_{jj'} E[(v_j - \bar v_i)(v_{j'} - \bar v_{i'})]
       + G_{ii'} e\,a_i a_{i'}. $$
    The second part is that of keys and values that read the same tokens: $e$ is `excess`, the mean squared cosine of
    two tokens, and $a_i = \sum_j A_{ij} (C_{jj} - (AC)_{ij})$. Sharp weights multiply the first part by the share that
    passes softmax and $a_i$ by $(1 - P_2)/(1 - 1/n_i)$. Tokens that vary in few directions have a large first part.
    """
    mean = rows.even
    averages = mean @ pairs.values
    between = averages @ mean.T
    keys = pairs.keys @ mean.T
    crossed = mean @ (averages.T * keys)
    inner = mean @ (pairs.keys * pairs.values) @ mean.T - crossed - crossed.T + between * (mean @ keys)
    inner.diagonal().mul_(_sharpness(rows))
    own = (mean * (pairs.values.diagonal()[None, :] - averages)).sum(1)
    own = own * (1 - rows.squared) / (1 - mean.amax(1)).clamp_min(MIN_SHARE)
    return pairs.output_gradient * (inner + excess * torch.outer(own, own))


def key_gradient_pairs(pairs: AttentionPairs, rows: AttentionRows) -> Tensor:
    r"""Pairs of $\sum_i g^s_{ij} q_i$, in the notation of `query_gradient_pairs`, with $Q$ the pairs of queries:

    $$ E[g^k_j g^k_{j'}] = \sum_{ii'} A_{ij} A_{i'j'} G_{ii'} Q_{ii'} E[(v_j - \bar v_i)(v_{j'} - \bar v_{i'})]. $$
    """
    mean = rows.even
    weights = pairs.output_gradient * pairs.queries
    weights.diagonal().mul_(_sharpness(rows))
    averages = mean @ pairs.values
    below = mean.T @ weights
    crossed = (below * averages.T) @ mean
    return (
        pairs.values * (below @ mean) - crossed - crossed.T + mean.T @ (weights * (averages @ mean.T)) @ mean
    )
