r"""What an activation does to a Gaussian signal: $E[\phi^2]$, $E[\phi'^2]$ and the largest $\phi'^2$, without torch.

$x \sim N(\mu, \sigma^2)$. With $\varphi$ and $\Phi$ the density and the distribution function of the unit Gaussian and
$u = \mu/\sigma$, the positive part of $x$ has

$$ E[x_+^2] = (\mu^2 + \sigma^2)\,\Phi(u) + \mu\,\sigma\,\varphi(u), \qquad P(x > 0) = \Phi(u), $$

which is all that functions of two straight lines need ($\phi = x_+ - a\,x_-$: ReLU, leaky ReLU). The others are
integrated by the trapezoidal rule, which for smooth functions under a Gaussian converges faster than any power of the
step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

REACH = 8.0  # standard deviations integrated over; the rest weighs 1e-15 (derived)
NODES = 320  # a step of 0.05: 1e-10 for smooth functions, 1e-4 at a kink (checked by tests/test_slopes.py)
STEP = 1e-4  # of the central difference that stands for the derivative


class Slope(NamedTuple):
    """Second moments of an activation's output and of its derivative, and the derivative's largest square."""

    ms: float
    slope_ms: float
    most: float


def slope_of(name: str, mean: float, var: float) -> Slope | None:
    """None if the activation is not in the table, or the moments are no numbers."""
    if name not in _FUNCTIONS or not (math.isfinite(mean) and math.isfinite(var)) or var < 0:
        return None
    if name in _BELOW:
        return _bent(_BELOW[name], mean, math.sqrt(var))
    return _integrated(name, float(f"{mean:.3g}"), float(f"{math.sqrt(var):.3g}"))


def _bent(below: float, mean: float, deviation: float) -> Slope:
    """Of two straight lines that meet at zero: slope 1 above, `below` below."""
    u = mean / deviation if deviation > 0 else math.copysign(math.inf, mean) if mean else 0.0
    above = 0.5 * math.erfc(-u / math.sqrt(2))
    square = mean * mean + deviation * deviation
    edge = mean * deviation * math.exp(-u * u / 2) / math.sqrt(2 * math.pi)
    upper, lower = square * above + edge, square * (1 - above) - edge
    return Slope(upper + below**2 * max(lower, 0.0), above + below**2 * (1 - above), max(1.0, below**2))


@cache
def _integrated(name: str, mean: float, deviation: float) -> Slope:
    function = _FUNCTIONS[name]
    ms = slope_ms = 0.0
    for z, weight in _nodes():
        x = mean + deviation * z
        ms += weight * function(x) ** 2
        slope_ms += weight * _derivative(function, x) ** 2
    return Slope(ms, slope_ms, _most(name))


@cache
def _nodes() -> list[tuple[float, float]]:
    """Midpoints, so that none lies on a kink at the mean; their weights add up to one."""
    places = [REACH * ((2 * index + 1) / NODES - 1) for index in range(NODES)]
    weights = [math.exp(-z * z / 2) for z in places]
    total = math.fsum(weights)
    return [(z, weight / total) for z, weight in zip(places, weights, strict=True)]


def _derivative(function: Callable[[float], float], x: float) -> float:
    return (function(x + STEP) - function(x - STEP)) / (2 * STEP)


@cache
def _most(name: str) -> float:
    """The largest squared slope anywhere; found on a grid, on which all functions of the table have theirs."""
    return max(_derivative(_FUNCTIONS[name], (index - 400) / 50) ** 2 for index in range(801))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _elu(x: float) -> float:
    return x if x > 0 else math.expm1(x)


_BELOW = {"relu": 0.0, "leaky_relu": 0.01}  # slope below zero; above it is 1
_SELU = (1.0507009873554805, 1.6732632423543772)  # scale and alpha, Klambauer et al. 2017, equation 14
_FUNCTIONS: dict[str, Callable[[float], float]] = {
    "relu": lambda x: max(x, 0.0),
    "leaky_relu": lambda x: x if x > 0 else 0.01 * x,
    "relu6": lambda x: min(max(x, 0.0), 6.0),
    "gelu": lambda x: x * 0.5 * math.erfc(-x / math.sqrt(2)),
    "silu": lambda x: x * _sigmoid(x),
    "mish": lambda x: x * math.tanh(_softplus(x)),
    "elu": _elu,
    "celu": _elu,
    "selu": lambda x: _SELU[0] * (x if x > 0 else _SELU[1] * math.expm1(x)),
    "softplus": _softplus,
    "sigmoid": _sigmoid,
    "tanh": math.tanh,
    "erf": math.erf,
    "softsign": lambda x: x / (1 + abs(x)),
    "hardtanh": lambda x: min(max(x, -1.0), 1.0),
    "hardsigmoid": lambda x: min(max(x / 6 + 0.5, 0.0), 1.0),
    "hardswish": lambda x: x * min(max(x / 6 + 0.5, 0.0), 1.0),
}
