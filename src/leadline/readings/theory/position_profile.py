r"""How the second moment differs along one axis: a class token among patches, the first tokens under a causal mask.

A profile holds one axis and a weight $w_p$ for each of its positions with mean 1: position $p$ has $w_p\,E[x^2]$.
A field has at most one profile; what differs along a second axis is averaged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

# Heuristic: smaller differences between positions are not worth their cost.
MIN_UNEVENNESS = 1e-3

# Heuristic: bounds the cost of an op; longer axes are taken as even.
MAX_PROFILE_LENGTH = 4096

# Heuristic: bounds the cost of an op; on longer axes all pairs of positions are taken as alike.
MAX_PAIRS_LENGTH = 128

# Derived: weights of empty positions are raised to this before a negative power is taken.
MIN_WEIGHT = 1e-12


class PositionProfile(NamedTuple):
    """The relative second moments along one axis."""

    axis: int
    weights: tuple[float, ...]
    pairs: torch.Tensor | None = None
    """$E[x_p x_{p'}] / E[x^2]$ of each pair of positions, if pairs differ; the diagonal are the weights."""


def pair_profile(axis: int, pairs: torch.Tensor) -> tuple[float, PositionProfile | None]:
    """The mean of the diagonal of a matrix of pair moments, and the profile; None if they are not finite."""
    diagonal = pairs.diagonal().tolist()
    mean = sum(diagonal) / len(diagonal)
    if not math.isfinite(mean) or mean <= 0:
        return mean, None
    if abs(mean - 1) < MIN_UNEVENNESS**2:
        return mean, PositionProfile(axis, tuple(diagonal), pairs)
    return mean, PositionProfile(axis, tuple([each / mean for each in diagonal]), pairs / mean)


def mean_pair(pairs: torch.Tensor, weights: Sequence[float]) -> float:
    """The mean over pairs of different positions, given the diagonal as `weights`."""
    n = len(weights)
    return (float(pairs.sum()) - sum(weights)) / max(n * (n - 1), 1)


def normalized_profile(axis: int, sizes: Sequence[float]) -> tuple[float, PositionProfile | None]:
    """The mean of second moments along an axis, and their profile; None if they are even."""
    if not sizes or len(sizes) > MAX_PROFILE_LENGTH:
        return (sum(sizes) / len(sizes) if sizes else 1.0), None
    mean = sum(sizes) / len(sizes)
    if not math.isfinite(mean) or mean <= 0:
        return mean, None
    if max(sizes) - min(sizes) <= MIN_UNEVENNESS * mean:
        return mean, None
    return mean, PositionProfile(axis, tuple([size / mean for size in sizes]))


def multiplied(a: PositionProfile | None, b: PositionProfile | None) -> tuple[float, PositionProfile | None]:
    r"""The profile of a product of independent tensors, and $\overline{w_a w_b}$, or the more uneven of two axes."""
    if a is None or b is None:
        return 1.0, a or b
    if a.axis != b.axis or len(a.weights) != len(b.weights):
        return 1.0, max((a, b), key=unevenness)
    if a.pairs is not None or b.pairs is not None:
        return pair_profile(a.axis, _pairs_of_factor(a) * _pairs_of_factor(b))
    return normalized_profile(a.axis, [x * y for x, y in zip(a.weights, b.weights, strict=True)])


def _pairs_of_factor(profile: PositionProfile) -> torch.Tensor:
    """The pairs of a profile; without them, those of a factor that is a number at each position."""
    if profile.pairs is not None:
        return profile.pairs
    roots = torch.tensor(profile.weights, dtype=torch.float64, device="cpu").clamp_min(0.0).sqrt()
    return torch.outer(roots, roots)


def raised(profile: PositionProfile | None, exponent: float) -> tuple[float, PositionProfile | None]:
    r"""The profile of a function whose second moment grows like a power of its operand's, and $\overline{w^e}$."""
    if profile is None or exponent == 1.0:
        return 1.0, profile
    if exponent == 0.0:
        return 1.0, None
    return normalized_profile(profile.axis, [max(each, MIN_WEIGHT) ** exponent for each in profile.weights])


def mixed(parts: Iterable[tuple[float, PositionProfile | None]]) -> PositionProfile | None:
    """The profile of a sum of independent tensors, given with their second moments."""
    parts = list(parts)
    uneven = [(ms, profile) for ms, profile in parts if profile is not None]
    if not uneven:
        return None
    first = uneven[0][1]
    if len(uneven) > 1:
        first = max(uneven, key=lambda part: part[0] * unevenness(part[1]))[1]
    whole = sum(ms for ms, _ in parts)
    sizes = [0.0] * len(first.weights)
    for ms, profile in parts:
        fits = profile is not None and profile.axis == first.axis and len(profile.weights) == len(sizes)
        if fits and profile is not None:
            sizes = [size + ms * weight for size, weight in zip(sizes, profile.weights, strict=True)]
        else:
            sizes = [size + ms for size in sizes]
    return normalized_profile(first.axis, sizes)[1] if whole > 0 else None


def mean_root(profile: PositionProfile) -> float:
    r"""$\overline{\sqrt{w}}$: the mean of a positive tensor relative to the root of its mean square over positions."""
    return sum(math.sqrt(max(each, 0.0)) for each in profile.weights) / len(profile.weights)


def unevenness(profile: PositionProfile | None) -> float:
    """The variance of the weights."""
    return 0.0 if profile is None else _variance(profile.weights)


@lru_cache(maxsize=1024)  # a residual stream asks for it at each of its sums
def _variance(weights: tuple[float, ...]) -> float:
    return sum([(each - 1) ** 2 for each in weights]) / len(weights)


def merged_pairs(profile: PositionProfile, axis: int, length: int, apart: float) -> PositionProfile | None:
    """The profile of an axis of several copies of the positions, such as the tokens of all samples; None if it is long.

    Positions of different copies share at most `apart`.
    """
    if profile.pairs is None or length > MAX_PAIRS_LENGTH:
        return None
    pairs = profile.pairs
    between = pairs.clamp_max(max(apart, 0.0))
    between.diagonal().copy_(pairs.diagonal() * max(apart, 0.0))
    count = length // len(profile.weights)
    copies = torch.eye(count, dtype=pairs.dtype, device="cpu")
    block = torch.kron(copies, pairs - between) + torch.kron(torch.ones_like(copies), between)
    return PositionProfile(axis, profile.weights * count, block)


def split_pairs(profile: PositionProfile, axis: int, length: int) -> PositionProfile | None:
    """The profile of the last axis that an axis was split to: the mean over its runs of that length."""
    if profile.pairs is None:
        return None
    pairs = profile.pairs.reshape(-1, length, len(profile.weights) // length, length)
    return pair_profile(axis, pairs.diagonal(dim1=0, dim2=2).mean(-1))[1]


@lru_cache(maxsize=1024)
def regrouped(
    profile: PositionProfile, old: tuple[int, ...], new: tuple[int, ...], place: int
) -> PositionProfile | None:
    """The profile after the axes `old`, of which it lies along one, became the axes `new` with the same elements.

    `profile.axis` counts in `old`, the result in all axes with `place` the first of `new`.
    """
    if math.prod(old) > MAX_PROFILE_LENGTH:
        return None
    shape = [1] * len(old)
    shape[profile.axis] = old[profile.axis]
    weights = torch.tensor(profile.weights, dtype=torch.float64, device="cpu").reshape(shape).expand(old)
    whole = weights.reshape(new)
    found: list[PositionProfile] = []
    for axis in range(len(new)):
        others = [each for each in range(len(new)) if each != axis]
        along = whole.mean(others) if others else whole
        profile_along = normalized_profile(place + axis, along.tolist())[1]
        if profile_along is not None:
            found.append(profile_along)
    return max(found, key=unevenness, default=None)
