r"""The law of a tensor's elements: where they were drawn from, and their exact first and second moment.

An element is $x = a + b\,u$ with $u$ of a *shape*: the standard normal, the uniform on $(-1, 1)$, a point, or what a
pointwise function made of one of these. A shape is held as quadrature nodes, so that a function of it is the function
of its nodes: initialisers that take a root, an exponential or a clamp of what they drew are followed by doing the same.
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

NODES = (
    401  # ours: the trapezoidal rule is then exact to 1e-12 for smooth functions, and to 1e-4 behind a kink
)
REACH = 8.5  # standard deviations; derived: less than 1e-16 of the normal law lies outside
STEP = 3.4  # half the range of the double exponential rule; derived: beyond, 1 - |u| is below float64's resolution
NEVER = 1e-12  # weight of nodes at which a function is not finite; derived: a node that rounds to the end of its range
LONGEST = 100  # characters of a description; ours


@contextmanager
def real() -> Iterator[None]:
    """Inside (or in a function that wears it), torch computes with real numbers, whatever modes are active."""
    with _disable_current_modes(), torch.no_grad():
        yield


class Shape(NamedTuple):
    """A distribution by its nodes and weights, with the moments (exact where they are known in closed form)."""

    nodes: Tensor
    weights: Tensor
    mean: float
    ms: float


@dataclass(frozen=True, eq=False, slots=True)
class Source:
    """One draw of random numbers, known by identity. A rearranged copy is a source of its own with the same root."""

    origin: Source | None = None

    @property
    def root(self) -> Source:
        found = self
        while found.origin is not None:
            found = found.origin
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """Elements $a + b\\,u$; without a shape only their moments are known."""

    mean: float
    ms: float
    how: str
    """What the initialisers did, in words: "normal(0, 0.02) then x 0.0417"."""
    source: Source | None = None
    """The draw behind the elements; None if nothing was drawn."""
    shape: Shape | None = None
    shift: float = 0.0
    scale: float = 1.0
    mixed: bool = False
    """Some elements follow one law, some another."""

    @property
    def is_constant(self) -> bool:
        return self.shape is not None and len(self.shape.nodes) == 1

    @property
    @real()
    def nodes(self) -> Tensor:
        """Values of an element at the nodes of its shape."""
        if self.shape is None:
            raise ValueError(f"only the moments of {self.how} are known")
        return self.shape.nodes * self.scale + self.shift

    @real()
    def largest(self, count: int) -> float:
        """The magnitude that about one of `count` elements exceeds; without a shape, that of a normal law."""
        if self.shape is None:
            return math.sqrt(self.ms * max(2 * math.log(max(count, 2)), 1.0))
        sizes, order = self.nodes.abs().sort(descending=True)
        rank = int((self.shape.weights[order].cumsum(0) < 1 / max(count, 1)).sum())
        return sizes[min(rank, len(sizes) - 1)].item()


@dataclass(frozen=True, slots=True)
class Unknown:
    """Elements of which nothing is known, and why."""

    why: str
    source: Source | None = field(default=None, compare=False)


Known = Law | Unknown
UNWRITTEN = Unknown("never initialised")


@cache
@real()
def standard_normal() -> Shape:
    """Trapezoidal rule in $z$."""
    z = torch.linspace(-REACH, REACH, NODES, dtype=torch.float64)
    weights = torch.exp(-z * z / 2)
    return Shape(z, weights / weights.sum(), 0.0, 1.0)


@cache
@real()
def standard_uniform() -> Shape:
    """Double exponential rule: $u = \\tanh(\\frac{\\pi}{2} \\sinh t)$, which forgives a singularity at either end."""
    t = torch.linspace(-STEP, STEP, NODES, dtype=torch.float64)
    inner = math.pi / 2 * torch.sinh(t)
    weights = torch.cosh(t) / torch.cosh(inner) ** 2
    nodes = torch.tanh(inner)
    inside = nodes.abs() < 1
    weights = weights[inside]
    return Shape(nodes[inside], weights / weights.sum(), 0.0, 1 / 3)


@cache
@real()
def point() -> Shape:
    one = torch.ones(1, dtype=torch.float64)
    return Shape(one, one, 1.0, 1.0)


def affine(shape: Shape, shift: float, scale: float, how: str, source: Source | None) -> Law:
    mean = shift + scale * shape.mean
    ms = shift * shift + 2 * shift * scale * shape.mean + scale * scale * shape.ms
    return Law(mean=mean, ms=ms, how=how, source=source, shape=shape, shift=shift, scale=scale)


def constant(value: float) -> Law:
    return affine(point(), 0.0, value, f"{value:.4g}", None)


def normal(mean: float = 0.0, std: float = 1.0) -> Law:
    return affine(standard_normal(), mean, std, f"normal({mean:.4g}, {std:.4g})", Source())


def uniform(low: float = 0.0, high: float = 1.0) -> Law:
    middle, half = (low + high) / 2, (high - low) / 2
    return affine(standard_uniform(), middle, half, f"uniform({low:.4g}, {high:.4g})", Source())


@real()
def truncated_normal(mean: float, std: float, low: float, high: float) -> Law:
    r"""$N(\mu, \sigma^2)$ given that it lies in $[a, b]$: with $\alpha = (a-\mu)/\sigma$, $\beta = (b-\mu)/\sigma$,
    $Z = \Phi(\beta) - \Phi(\alpha)$,

    $$ E[z] = \frac{\varphi(\alpha) - \varphi(\beta)}{Z}, \quad
       E[z^2] = 1 + \frac{\alpha\varphi(\alpha) - \beta\varphi(\beta)}{Z} $$
    """
    alpha, beta = (low - mean) / std, (high - mean) / std
    inside = _normal_cdf(beta) - _normal_cdf(alpha)
    first = (_normal_pdf(alpha) - _normal_pdf(beta)) / inside
    second = 1 + (_ramp(alpha) - _ramp(beta)) / inside
    z = torch.linspace(max(alpha, -REACH), min(beta, REACH), NODES, dtype=torch.float64)
    weights = torch.exp(-z * z / 2)
    weights[0] /= 2
    weights[-1] /= 2
    shape = Shape(z, weights / weights.sum(), first, second)
    how = f"truncated normal({mean:.4g}, {std:.4g}) in [{low:.4g}, {high:.4g}]"
    return affine(shape, mean, std, how, Source())


def moments(mean: float, ms: float, how: str, source: Source | None = None) -> Law:
    return Law(mean=mean, ms=ms, how=shortened(how), source=source)


@real()
def of_values(values: Tensor, how: str) -> Law:
    """The law of numbers that are all there."""
    if values.numel() == 0:
        return constant(0.0)
    if not values.is_complex() and bool((values == values.reshape(-1)[0]).all()):
        return constant(float(values.reshape(-1)[0]))
    wide = values.detach().reshape(-1).to(torch.complex128 if values.is_complex() else torch.float64).abs()
    mean = wide.mean().item() if values.is_complex() else values.detach().double().mean().item()
    return moments(mean, wide.square().mean().item(), how)


@real()
def of_nodes(nodes: Tensor, like: Law, how: str) -> Law:
    """The law of a function of `like`, by its values at the nodes."""
    if like.shape is None:
        raise ValueError(f"only the moments of {like.how} are known")
    wide, weights = nodes.double(), like.shape.weights
    lost = ~torch.isfinite(wide)
    if lost.any() and weights[lost].sum() < NEVER:
        wide, weights = wide.masked_fill(lost, 0.0), weights.masked_fill(lost, 0.0)
    mean, ms = torch.dot(weights, wide).item(), torch.dot(weights, wide * wide).item()
    return affine(Shape(wide, weights, mean, ms), 0.0, 1.0, shortened(how), like.source)


def scaled(law: Law, factor: float) -> Law:
    how = shortened(f"{law.how} then x {factor:.4g}")
    if law.shape is None:
        return replace(law, mean=law.mean * factor, ms=law.ms * factor * factor, how=how)
    if law.is_constant:
        return constant((law.shift + law.scale) * factor)
    return affine(law.shape, law.shift * factor, law.scale * factor, how, law.source)


def shifted(law: Law, by: float) -> Law:
    if by == 0:
        return law
    how = shortened(f"{law.how} then {by:+.4g}")
    if law.shape is None:
        return replace(law, mean=law.mean + by, ms=law.ms + 2 * by * law.mean + by * by, how=how)
    if law.is_constant:
        return constant(law.shift + law.scale + by)
    return affine(law.shape, law.shift + by, law.scale, how, law.source)


def mixture(parts: list[tuple[float, Law]]) -> Law:
    """A share of the elements from each law; the shares add up to one. The largest random part lends its source."""
    shares: dict[tuple[str, Source | None], tuple[float, Law]] = {}
    for share, law in parts:
        key = (law.how, law.source)
        shares[key] = (shares.get(key, (0.0, law))[0] + share, law)
    parts = list(shares.values())
    if len(parts) == 1:
        return parts[0][1]
    ranked = sorted(parts, key=lambda part: -part[0])
    how = ", ".join(f"{_percent(share)} {law.how}" for share, law in ranked[:3])
    rest = f" and {len(ranked) - 3} more" if len(ranked) > 3 else ""
    source = next((law.source for _, law in ranked if law.source is not None), None)
    mean = sum(share * law.mean for share, law in parts)
    ms = sum(share * law.ms for share, law in parts)
    return replace(moments(mean, ms, how + rest, source), mixed=True)


def shortened(how: str) -> str:
    return how if len(how) <= LONGEST else how[: LONGEST - 1] + "…"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _normal_pdf(z: float) -> float:
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi) if math.isfinite(z) else 0.0


def _normal_cdf(z: float) -> float:
    return (1 + math.erf(z / math.sqrt(2))) / 2


def _ramp(z: float) -> float:
    return z * _normal_pdf(z) if math.isfinite(z) else 0.0
