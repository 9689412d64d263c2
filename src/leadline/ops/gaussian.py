r"""Expectations under a Gaussian: the only quadrature rule, and a table of activations, both without torch.

$x \sim N(\mu, \sigma^2)$ throughout. `leadline.nn` and `leadline.readings.theory` integrate torch functions with the
fine rule; what must not load torch integrates the scalar functions of the table with the coarse one.
This module imports only the standard library, so that `leadline.nn` can use it and still stand alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple


class QuadratureRule(NamedTuple):
    """Composite Gauss-Legendre rule under the standard normal density: `order` nodes in each of `panels` panels."""

    reach: float
    """Standard deviations integrated over, on both sides."""
    panels: int
    """An even number, so that a panel edge lies on a kink at zero."""
    order: int
    """Nodes per panel; 1 is the midpoint rule."""

    def nodes(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Points and weights; the weights add up to one."""
        return _nodes(self)


# Derived: the mass beyond 12 standard deviations is below 1e-32. Smooth activations are integrated to 1e-11
# (tests/nn/test_activations.py).
FINE_RULE = QuadratureRule(reach=12.0, panels=240, order=8)

# Derived: the mass beyond 8 standard deviations is 1e-15. A sixth of the nodes of the fine rule, because each costs a
# call in Python: 1e-10 for smooth functions, 1e-4 at a kink (tests/ops/test_gaussian.py).
COARSE_RULE = QuadratureRule(reach=8.0, panels=320, order=1)

# Derived: a central difference with this step errs by 1e-8, below the three digits that inputs are rounded to.
DERIVATIVE_STEP = 1e-4


class ActivationMoments(NamedTuple):
    r"""Moments of $\phi(x)$ and of its derivative."""

    mean: float
    r"""$E[\phi]$"""
    square: float
    r"""$E[\phi^2]$"""
    slope_square: float
    r"""$E[\phi'^2]$"""


def activation_moments(name: str, mean: float, var: float) -> ActivationMoments | None:
    r"""Moments of a named activation of $N(\mu, \sigma^2)$; None if it is not in the table or a moment is not finite.

    ReLU and leaky ReLU have a closed form. For the others $\mu$ and $\sigma$ are rounded to three digits, so that equal
    layers share one integration.
    """
    if name not in ACTIVATION_FUNCTIONS or not (math.isfinite(mean) and math.isfinite(var)) or var < 0:
        return None
    if name in NEGATIVE_SLOPES:
        return rectifier_moments(NEGATIVE_SLOPES[name], mean, math.sqrt(var))
    return _integrate(name, float(f"{mean:.3g}"), float(f"{math.sqrt(var):.3g}"))


def rectifier_moments(negative_slope: float, mean: float, deviation: float) -> ActivationMoments:
    r"""Moments of $\phi = x_+ - a\,x_-$ with $a$ the slope below zero: ReLU, leaky ReLU.

    With $\varphi$ and $\Phi$ the density and the distribution function of the unit Gaussian and $u = \mu/\sigma$,

    $$ E[x_+] = \mu\,\Phi(u) + \sigma\,\varphi(u), \quad
       E[x_+^2] = (\mu^2 + \sigma^2)\,\Phi(u) + \mu\,\sigma\,\varphi(u), \quad P(x > 0) = \Phi(u). $$
    """
    at_point = math.copysign(math.inf, mean) if mean else 0.0
    u = mean / deviation if deviation > 0 else at_point
    positive = 0.5 * math.erfc(-u / math.sqrt(2))
    density = math.exp(-u * u / 2) / math.sqrt(2 * math.pi)
    square = mean * mean + deviation * deviation
    edge = mean * deviation * density
    upper, lower = square * positive + edge, square * (1 - positive) - edge
    upper_mean = mean * positive + deviation * density
    return ActivationMoments(
        mean=upper_mean + negative_slope * (mean - upper_mean),
        square=upper + negative_slope**2 * max(lower, 0.0),
        slope_square=positive + negative_slope**2 * (1 - positive),
    )


def gelu_moments(variance: float) -> ActivationMoments:
    r"""Moments of GELU of a centered Gaussian of variance $s$, with $a = s/(1+s)$.

    The mean is $\sqrt{sa/2\pi}$; the squares are those of Kedia et al. 2024 (DeepScaleLM, arXiv 2403.09635).

    $$ E\phi^2 = \frac s4 + \frac{s}{2\pi}\Big[\frac{2s}{(1+s)\sqrt{1+2s}} + \arcsin a\Big], \quad
       E\phi'^2 = \frac12 + \frac{1}{2\pi}\Big[\frac{a(5s+3)}{(1+2s)^{3/2}} - \arccos a\Big] $$
    Both agree with the quadrature to 1e-9 (tests/nn/test_activations.py).
    """
    s = variance
    a, root = s / (1 + s), math.sqrt(1 + 2 * s)
    return ActivationMoments(
        mean=math.sqrt(s * a / (2 * math.pi)),
        square=s / 4 + s / (2 * math.pi) * (2 * s / ((1 + s) * root) + math.asin(a)),
        slope_square=0.5 + (a * (5 * s + 3) / root**3 - math.acos(a)) / (2 * math.pi),
    )


def max_slope_square(name: str) -> float | None:
    """The largest squared slope of a named activation anywhere; None if it is not in the table."""
    if name not in ACTIVATION_FUNCTIONS:
        return None
    if name in NEGATIVE_SLOPES:
        return max(1.0, NEGATIVE_SLOPES[name] ** 2)
    return _max_slope_square(name)


@cache
def _max_slope_square(name: str) -> float:
    """By a grid that holds the steepest point of every function of the table."""
    return max(_derivative(ACTIVATION_FUNCTIONS[name], (index - 400) / 50) ** 2 for index in range(801))


@cache
def _integrate(name: str, mean: float, deviation: float) -> ActivationMoments:
    function = ACTIVATION_FUNCTIONS[name]
    first = square = slope_square = 0.0
    for z, weight in zip(*COARSE_RULE.nodes(), strict=True):
        x = mean + deviation * z
        y = function(x)
        first += weight * y
        square += weight * y**2
        slope_square += weight * _derivative(function, x) ** 2
    return ActivationMoments(first, square, slope_square)


def _derivative(function: Callable[[float], float], x: float) -> float:
    return (function(x + DERIVATIVE_STEP) - function(x - DERIVATIVE_STEP)) / (2 * DERIVATIVE_STEP)


@cache
def _nodes(rule: QuadratureRule) -> tuple[tuple[float, ...], tuple[float, ...]]:
    half = rule.reach / rule.panels
    points: list[float] = []
    weights: list[float] = []
    for panel in range(rule.panels):
        center = half * (2 * panel + 1 - rule.panels)
        for place, weight in _legendre_nodes(rule.order):
            z = center + half * place
            points.append(z)
            weights.append(half * weight * math.exp(-z * z / 2) / math.sqrt(2 * math.pi))
    total = math.fsum(weights)
    return tuple(points), tuple(weight / total for weight in weights)


@cache
def _legendre_nodes(order: int) -> tuple[tuple[float, float], ...]:
    r"""Gauss-Legendre nodes on [-1, 1] with their weights $2 / ((1 - x^2) P_n'(x)^2)$, by Newton's method."""
    nodes = []
    for index in range(order):
        x = -math.cos(math.pi * (index + 0.75) / (order + 0.5))
        for _ in range(8):  # converges quadratically from this guess; five rounds reach the last digit
            value, slope = _legendre(order, x)
            x -= value / slope
        _, slope = _legendre(order, x)
        nodes.append((x, 2 / ((1 - x * x) * slope * slope)))
    return tuple(nodes)


def _legendre(order: int, x: float) -> tuple[float, float]:
    """The Legendre polynomial of this order at x, and its derivative."""
    before, value = 1.0, x
    for k in range(2, order + 1):
        before, value = value, ((2 * k - 1) * x * value - (k - 1) * before) / k
    return value, order * (x * value - before) / (x * x - 1)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _elu(x: float) -> float:
    return x if x > 0 else math.expm1(x)


# Derived: from torch; 0.01 is the default of nn.LeakyReLU.
NEGATIVE_SLOPES = {"relu": 0.0, "leaky_relu": 0.01}
"""Activations made of two straight lines: their slope below zero; above it is 1."""

# Cited: Klambauer et al. 2017 (Self-normalizing neural networks), equation 14: scale and alpha.
SELU_CONSTANTS = (1.0507009873554805, 1.6732632423543772)

ACTIVATION_FUNCTIONS: dict[str, Callable[[float], float]] = {
    "relu": lambda x: max(x, 0.0),
    "leaky_relu": lambda x: x if x > 0 else 0.01 * x,
    "relu6": lambda x: min(max(x, 0.0), 6.0),
    "gelu": lambda x: x * 0.5 * math.erfc(-x / math.sqrt(2)),
    "silu": lambda x: x * _sigmoid(x),
    "mish": lambda x: x * math.tanh(_softplus(x)),
    "elu": _elu,
    "celu": _elu,
    "selu": lambda x: SELU_CONSTANTS[0] * (x if x > 0 else SELU_CONSTANTS[1] * math.expm1(x)),
    "softplus": _softplus,
    "sigmoid": _sigmoid,
    "tanh": math.tanh,
    "erf": math.erf,
    "softsign": lambda x: x / (1 + abs(x)),
    "hardtanh": lambda x: min(max(x, -1.0), 1.0),
    "hardsigmoid": lambda x: min(max(x / 6 + 0.5, 0.0), 1.0),
    "hardswish": lambda x: x * min(max(x / 6 + 0.5, 0.0), 1.0),
}
"""Scalar forms of the activations, with PyTorch's default parameters, by canonical op name."""
