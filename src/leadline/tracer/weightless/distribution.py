r"""The distribution of a tensor's elements: how they were drawn, and their exact first and second moment.

An element is $x = a + b\,u$, where $u$ has a *shape*: the standard normal, the uniform on $(-1, 1)$, a point, or a
pointwise function of one of these. A shape is held as quadrature nodes, so a function of it is the function of its
nodes. This follows initializers that take a root, an exponential or a clamp of what they drew.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

# Heuristic: with so many nodes, the trapezoidal rule is exact to 1e-12 for smooth functions and to 1e-4 after a kink.
NUM_NODES = 401
# Derived: less than 1e-16 of the normal distribution lies outside this many standard deviations.
MAX_DEVIATIONS = 8.5
# Derived: half the range of the double exponential rule; beyond it, 1 - |u| is below the resolution of float64.
MAX_EXPONENTIAL_NODE = 3.4
# Derived: weight of nodes at which a function is not finite; a node that rounds to the end of its range has less.
MAX_LOST_WEIGHT = 1e-12
# Heuristic: characters of a description; so many fit on one line of a report.
MAX_DESCRIPTION_LENGTH = 100


@contextmanager
def real_tensors() -> Iterator[None]:
    """Compute with real tensors inside (or in a decorated function), even while a fake-tensor mode is active."""
    with _disable_current_modes(), torch.no_grad():
        yield


class Shape(NamedTuple):
    """A standard distribution by its nodes and weights, with its moments (exact where a closed form is known)."""

    nodes: Tensor
    weights: Tensor
    mean: float
    ms: float


@dataclass(frozen=True, eq=False, slots=True)
class RandomDraw:
    """One draw of random numbers, compared by identity. A rearranged copy is a new draw with the same root."""

    origin: RandomDraw | None = None

    @property
    def root(self) -> RandomDraw:
        draw = self
        while draw.origin is not None:
            draw = draw.origin
        return draw


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The distribution of elements $a + b\\,u$; without a shape only their moments are known."""

    mean: float
    ms: float
    how: str
    """What the initializers did, in words: "normal(0, 0.02) then x 0.0417"."""
    source: RandomDraw | None = None
    """The draw that the elements come from; None if nothing was drawn."""
    shape: Shape | None = None
    shift: float = 0.0
    scale: float = 1.0
    mixed: bool = False
    """Some elements have one distribution, some another."""

    @property
    def is_constant(self) -> bool:
        return self.shape is not None and len(self.shape.nodes) == 1

    @property
    @real_tensors()
    def nodes(self) -> Tensor:
        """Values of an element at the nodes of its shape."""
        if self.shape is None:
            raise ValueError(f"only the moments of {self.how} are known")
        return self.shape.nodes * self.scale + self.shift

    @real_tensors()
    def largest(self, count: int) -> float:
        """Return the magnitude that about one of `count` elements exceeds; without a shape, assume normal elements."""
        if self.shape is None:
            return math.sqrt(self.ms * max(2 * math.log(max(count, 2)), 1.0))
        sizes, order = self.nodes.abs().sort(descending=True)
        rank = int((self.shape.weights[order].cumsum(0) < 1 / max(count, 1)).sum())
        return sizes[min(rank, len(sizes) - 1)].item()


@dataclass(frozen=True, slots=True)
class Unknown:
    """The distribution of the elements is not known; `why` says the reason."""

    why: str
    source: RandomDraw | None = field(default=None, compare=False)


MaybeDistribution = Distribution | Unknown
UNWRITTEN = Unknown("never initialized")


@cache
@real_tensors()
def standard_normal() -> Shape:
    """The standard normal, by the trapezoidal rule in $z$."""
    z = torch.linspace(-MAX_DEVIATIONS, MAX_DEVIATIONS, NUM_NODES, dtype=torch.float64)
    weights = torch.exp(-z * z / 2)
    return Shape(z, weights / weights.sum(), 0.0, 1.0)


@cache
@real_tensors()
def standard_uniform() -> Shape:
    """The uniform on $(-1, 1)$, by the double exponential rule $u = \\tanh(\\frac{\\pi}{2} \\sinh t)$.

    This rule stays accurate for functions with a singularity at either end.
    """
    t = torch.linspace(-MAX_EXPONENTIAL_NODE, MAX_EXPONENTIAL_NODE, NUM_NODES, dtype=torch.float64)
    inner = math.pi / 2 * torch.sinh(t)
    weights = torch.cosh(t) / torch.cosh(inner) ** 2
    nodes = torch.tanh(inner)
    inside = nodes.abs() < 1
    weights = weights[inside]
    return Shape(nodes[inside], weights / weights.sum(), 0.0, 1 / 3)


@cache
@real_tensors()
def point() -> Shape:
    one = torch.ones(1, dtype=torch.float64)
    return Shape(one, one, 1.0, 1.0)


def affine(shape: Shape, shift: float, scale: float, how: str, source: RandomDraw | None) -> Distribution:
    mean = shift + scale * shape.mean
    ms = shift * shift + 2 * shift * scale * shape.mean + scale * scale * shape.ms
    return Distribution(mean=mean, ms=ms, how=how, source=source, shape=shape, shift=shift, scale=scale)


def constant(value: float) -> Distribution:
    return affine(point(), 0.0, value, f"{value:.4g}", None)


def normal(mean: float = 0.0, std: float = 1.0) -> Distribution:
    return affine(standard_normal(), mean, std, f"normal({mean:.4g}, {std:.4g})", RandomDraw())


def uniform(low: float = 0.0, high: float = 1.0) -> Distribution:
    middle, half = (low + high) / 2, (high - low) / 2
    return affine(standard_uniform(), middle, half, f"uniform({low:.4g}, {high:.4g})", RandomDraw())


@real_tensors()
def truncated_normal(mean: float, std: float, low: float, high: float) -> Distribution:
    r"""$N(\mu, \sigma^2)$ conditioned on $[a, b]$: with $\alpha = (a-\mu)/\sigma$, $\beta = (b-\mu)/\sigma$,
    $Z = \Phi(\beta) - \Phi(\alpha)$,

    $$ E[z] = \frac{\varphi(\alpha) - \varphi(\beta)}{Z}, \quad
       E[z^2] = 1 + \frac{\alpha\varphi(\alpha) - \beta\varphi(\beta)}{Z} $$
    """
    alpha, beta = (low - mean) / std, (high - mean) / std
    inside = _normal_cdf(beta) - _normal_cdf(alpha)
    first = (_normal_pdf(alpha) - _normal_pdf(beta)) / inside
    second = 1 + (_ramp(alpha) - _ramp(beta)) / inside
    z = torch.linspace(max(alpha, -MAX_DEVIATIONS), min(beta, MAX_DEVIATIONS), NUM_NODES, dtype=torch.float64)
    weights = torch.exp(-z * z / 2)
    weights[0] /= 2
    weights[-1] /= 2
    shape = Shape(z, weights / weights.sum(), first, second)
    how = f"truncated normal({mean:.4g}, {std:.4g}) in [{low:.4g}, {high:.4g}]"
    return affine(shape, mean, std, how, RandomDraw())


def moments(mean: float, ms: float, how: str, source: RandomDraw | None = None) -> Distribution:
    return Distribution(mean=mean, ms=ms, how=shorten(how), source=source)


@real_tensors()
def of_values(values: Tensor, how: str) -> Distribution:
    """Return the distribution of known numbers."""
    if values.numel() == 0:
        return constant(0.0)
    if not values.is_complex() and bool((values == values.reshape(-1)[0]).all()):
        return constant(float(values.reshape(-1)[0]))
    wide = values.detach().reshape(-1).to(torch.complex128 if values.is_complex() else torch.float64).abs()
    mean = wide.mean().item() if values.is_complex() else values.detach().double().mean().item()
    return moments(mean, wide.square().mean().item(), how)


@real_tensors()
def of_nodes(nodes: Tensor, like: Distribution, how: str) -> Distribution:
    """Return the distribution of a function of `like`, given its values at the nodes."""
    if like.shape is None:
        raise ValueError(f"only the moments of {like.how} are known")
    wide, weights = nodes.double(), like.shape.weights
    lost = ~torch.isfinite(wide)
    if lost.any() and weights[lost].sum() < MAX_LOST_WEIGHT:
        wide, weights = wide.masked_fill(lost, 0.0), weights.masked_fill(lost, 0.0)
    mean, ms = torch.dot(weights, wide).item(), torch.dot(weights, wide * wide).item()
    return affine(Shape(wide, weights, mean, ms), 0.0, 1.0, shorten(how), like.source)


def scale_by(distribution: Distribution, factor: float) -> Distribution:
    how = shorten(f"{distribution.how} then x {factor:.4g}")
    if distribution.shape is None:
        return replace(
            distribution, mean=distribution.mean * factor, ms=distribution.ms * factor * factor, how=how
        )
    if distribution.is_constant:
        return constant((distribution.shift + distribution.scale) * factor)
    return affine(
        distribution.shape, distribution.shift * factor, distribution.scale * factor, how, distribution.source
    )


def shift_by(distribution: Distribution, by: float) -> Distribution:
    if by == 0:
        return distribution
    how = shorten(f"{distribution.how} then {by:+.4g}")
    if distribution.shape is None:
        return replace(
            distribution,
            mean=distribution.mean + by,
            ms=distribution.ms + 2 * by * distribution.mean + by * by,
            how=how,
        )
    if distribution.is_constant:
        return constant(distribution.shift + distribution.scale + by)
    return affine(distribution.shape, distribution.shift + by, distribution.scale, how, distribution.source)


def mixture(parts: list[tuple[float, Distribution]]) -> Distribution:
    """Return the mixture of parts with given shares, which sum to one; its draw is that of the largest random part."""
    shares: dict[tuple[str, RandomDraw | None], tuple[float, Distribution]] = {}
    for share, distribution in parts:
        key = (distribution.how, distribution.source)
        shares[key] = (shares.get(key, (0.0, distribution))[0] + share, distribution)
    parts = list(shares.values())
    if len(parts) == 1:
        return parts[0][1]
    ranked = sorted(parts, key=lambda part: -part[0])
    how = ", ".join(f"{_percent(share)} {distribution.how}" for share, distribution in ranked[:3])
    rest = f" and {len(ranked) - 3} more" if len(ranked) > 3 else ""
    source = next(
        (distribution.source for _, distribution in ranked if distribution.source is not None), None
    )
    mean = sum(share * distribution.mean for share, distribution in parts)
    ms = sum(share * distribution.ms for share, distribution in parts)
    return replace(moments(mean, ms, how + rest, source), mixed=True)


def shorten(how: str) -> str:
    return how if len(how) <= MAX_DESCRIPTION_LENGTH else how[: MAX_DESCRIPTION_LENGTH - 1] + "…"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _normal_pdf(z: float) -> float:
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi) if math.isfinite(z) else 0.0


def _normal_cdf(z: float) -> float:
    return (1 + math.erf(z / math.sqrt(2))) / 2


def _ramp(z: float) -> float:
    return z * _normal_pdf(z) if math.isfinite(z) else 0.0
