r"""What an activation does to a Gaussian signal: $E[\phi^2]$, $E[\phi'^2]$ and the largest $\phi'^2$, without torch.

$x \sim N(\mu, \sigma^2)$. ReLU has a closed form; the others are integrated by the trapezoidal rule, which for smooth
functions under a Gaussian converges faster than any power of the step.
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
    return _integrated(name, float(f"{mean:.3g}"), float(f"{math.sqrt(var):.3g}"))


@cache
def _integrated(name: str, mean: float, deviation: float) -> Slope:
    function = _FUNCTIONS[name]
    width = 2 * REACH / NODES
    total = ms = slope_ms = 0.0
    for index in range(NODES):
        z = -REACH + (index + 0.5) * width  # midpoints: none lies on a kink at the mean
        weight = math.exp(-z * z / 2)
        x = mean + deviation * z
        total += weight
        ms += weight * function(x) ** 2
        slope_ms += weight * _derivative(function, x) ** 2
    return Slope(ms / total, slope_ms / total, _most(name))


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
