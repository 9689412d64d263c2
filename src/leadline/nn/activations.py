"""Activations by name as torch functions, and their Gaussian moments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from leadline.errors import InputError
from leadline.ops.gaussian import (
    FINE_RULE,
    NEGATIVE_SLOPES,
    ActivationMoments,
    gelu_moments,
    rectifier_moments,
)

Activation = Callable[[Tensor], Tensor]


def identity(x: Tensor) -> Tensor:
    """Return `x` unchanged."""
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


def find_activation(activation: str | Activation) -> Activation:
    """The activation of that name; a function is returned as it is."""
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
def gaussian_moments(activation: str | Activation, q: float = 1.0) -> ActivationMoments:
    r"""Mean, second moment and mean squared slope of an activation of a centered Gaussian of variance $q$.

    $$ E[\phi] = \int \phi(\sqrt{q}z)\,Dz, \quad E[\phi^2] = \int \phi(\sqrt{q}z)^2 Dz, \quad
       E[\phi'^2] = \int \phi'(\sqrt{q}z)^2 Dz, \quad Dz = \frac{e^{-z^2/2}}{\sqrt{2\pi}}\,dz $$
    ReLU, leaky ReLU and GELU have closed forms; the others are integrated in float64 by
    `leadline.ops.gaussian.FINE_RULE`, which has a panel edge at 0. The activation must be elementwise: one that mixes
    features (softmax, GLU) has no such moments, and the result means nothing.
    """
    function = find_activation(activation)
    for name, negative_slope in NEGATIVE_SLOPES.items():
        if function is ACTIVATIONS[name]:
            return rectifier_moments(negative_slope, 0.0, math.sqrt(q))
    if function is F.gelu:
        return gelu_moments(q)
    z, weight = quadrature_nodes()
    x = (z * math.sqrt(q)).requires_grad_()
    with torch.enable_grad():
        y = function(x)
        (slope,) = torch.autograd.grad(y.sum(), x)
    y = y.detach()
    return ActivationMoments(
        mean=float(weight @ y), square=float(weight @ y.square()), slope_square=float(weight @ slope.square())
    )


@cache
def quadrature_nodes() -> tuple[Tensor, Tensor]:
    """Points and weights of the fine Gaussian rule as float64 tensors on the CPU."""
    points, weights = FINE_RULE.nodes()
    return (
        torch.tensor(points, dtype=torch.float64, device="cpu"),
        torch.tensor(weights, dtype=torch.float64, device="cpu"),
    )
