r"""Activations by name, and their Gaussian moments: closed form where there is one, quadrature for the
rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from leadline.errors import InputError

Activation = Callable[[Tensor], Tensor]

REACH = 12.0  # standard deviations integrated over; the Gaussian mass beyond is below 1e-32 (derived)
PANELS = 240  # of the composite rule; an even number puts a panel edge on the kink at 0 (derived)
NODES = 8  # Gauss-Legendre nodes a panel: 1e-11 on smooth activations, tests/nn/test_activations.py


def identity(x: Tensor) -> Tensor:
    """x itself."""
    return x


ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        "linear": identity,
        "relu": F.relu,
        "gelu": F.gelu,
        "silu": F.silu,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "elu": F.elu,
        "selu": F.selu,
        "mish": F.mish,
        "softplus": F.softplus,
        "leaky_relu": F.leaky_relu,
        "hardswish": F.hardswish,
        "erf": torch.erf,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianMoments:
    r"""Of $\phi(\sqrt{q}\,z)$, $z \sim N(0,1)$: the mean, $E[\phi^2]$ and $E[\phi'^2]$."""

    mean: float
    square: float
    slope_square: float


def find_activation(activation: str | Activation) -> Activation:
    """The function of that name; a function is itself."""
    if callable(activation):
        return activation
    if activation not in ACTIVATIONS:
        raise InputError(
            expected="activation: a function, or one of " + ", ".join(ACTIVATIONS),
            got=f"activation={activation!r}",
            fix="pass one of these names or the function itself",
        )
    return ACTIVATIONS[activation]


@lru_cache(maxsize=4096)
def gaussian_moments(activation: str | Activation, q: float = 1.0) -> GaussianMoments:
    r"""Mean, second moment and mean squared slope of an activation of a centred Gaussian of variance $q$.

    $$ E[\phi] = \int \phi(\sqrt{q}z)\,Dz, \quad E[\phi^2] = \int \phi(\sqrt{q}z)^2 Dz, \quad
       E[\phi'^2] = \int \phi'(\sqrt{q}z)^2 Dz, \quad Dz = \frac{e^{-z^2/2}}{\sqrt{2\pi}}\,dz $$
    ReLU and GELU are closed forms, the rest a composite Gauss-Legendre rule in float64 with a panel edge at
    0. Assumes an elementwise activation; one that mixes features (softmax, GLU) has no such moments and gives
    nonsense.
    """
    function = find_activation(activation)
    if function is F.relu:
        return GaussianMoments(mean=math.sqrt(q / (2 * math.pi)), square=q / 2, slope_square=0.5)
    if function is F.gelu:
        return _gelu_moments(q)
    z, weight = quadrature()
    x = (z * math.sqrt(q)).requires_grad_()
    with torch.enable_grad():
        y = function(x)
        (slope,) = torch.autograd.grad(y.sum(), x)
    y = y.detach()
    return GaussianMoments(
        mean=float(weight @ y), square=float(weight @ y.square()), slope_square=float(weight @ slope.square())
    )


def _gelu_moments(s: float) -> GaussianMoments:
    r"""$a = s/(1+s)$: mean $\sqrt{sa/2\pi}$; the squares as in Kedia et al. 2024 (DeepScaleLM, arXiv
    2403.09635).

    $$ E\phi^2 = \frac s4 + \frac{s}{2\pi}\Big[\frac{2s}{(1+s)\sqrt{1+2s}} + \arcsin a\Big], \quad
       E\phi'^2 = \frac12 + \frac{1}{2\pi}\Big[\frac{a(5s+3)}{(1+2s)^{3/2}} - \arccos a\Big] $$
    Both agree with the quadrature to 1e-9 (tests/nn/test_activations.py).
    """
    a, root = s / (1 + s), math.sqrt(1 + 2 * s)
    square = s / 4 + s / (2 * math.pi) * (2 * s / ((1 + s) * root) + math.asin(a))
    slope = 0.5 + (a * (5 * s + 3) / root**3 - math.acos(a)) / (2 * math.pi)
    return GaussianMoments(mean=math.sqrt(s * a / (2 * math.pi)), square=square, slope_square=slope)


@lru_cache(maxsize=1)
def quadrature() -> tuple[Tensor, Tensor]:
    """Points and Gaussian weights of the composite rule on [-REACH, REACH]."""
    nodes, weights = _legendre(NODES)
    edges = torch.linspace(-REACH, REACH, PANELS + 1, dtype=torch.float64)
    half = REACH / PANELS
    points = (edges[:-1, None] + half * (nodes[None, :] + 1)).flatten()
    density = torch.exp(-points.square() / 2) / math.sqrt(2 * math.pi)
    return points, half * weights.repeat(PANELS) * density


def _legendre(count: int) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights by the Golub-Welsch eigenvalue method."""
    k = torch.arange(1, count, dtype=torch.float64)
    off = k / torch.sqrt(4 * k**2 - 1)
    values, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return values, 2 * vectors[0].square()
