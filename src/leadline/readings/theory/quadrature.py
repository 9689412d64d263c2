r"""Moments and kernels of functions of a Gaussian source, given by their values at quadrature nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from leadline.nn.activations import quadrature_nodes

# Derived: what 24 orders leave of the second moment at a kink (0.3 % for ReLU) is assigned to the next order.
HERMITE_ORDERS = 24

# Heuristic: if a function is not finite on half of the Gaussian mass, its moments mean nothing.
MAX_NON_FINITE_MASS = 0.5


def nodes() -> Tensor:
    """Points $z_k$ of the fine rule for $z \\sim N(0, 1)$."""
    return quadrature_nodes()[0]


def _weights() -> Tensor:
    return quadrature_nodes()[1]


@cache
def _hermite() -> Tensor:
    r"""Rows $h_k(z) w / \sqrt{k!}$ of the normalized Hermite polynomials; a product with $f$ gives $a_k$."""
    z = nodes()
    rows = [torch.ones_like(z), z]
    for k in range(1, HERMITE_ORDERS - 1):
        rows.append((z * rows[k] - math.sqrt(k) * rows[k - 1]) / math.sqrt(k + 1))
    return torch.stack(rows) * _weights()


def moments(f: Tensor) -> tuple[float, float]:
    """$E[f]$ and $E[f^2]$."""
    weights = _weights()
    return float(weights @ f), float(weights @ f.square())


def product_mean(f: Tensor, g: Tensor) -> float:
    """$E[f g]$."""
    return float((_weights() * f) @ g)


def log_growth(f: Tensor) -> float:
    r"""$\partial \ln E[f^2] / \partial \ln \sigma^2$ at $\sigma = 1$ for a source of variance $\sigma^2$."""
    square = f.square()
    ms = float(_weights() @ square)
    return float((_weights() * square) @ (nodes().square() - 1)) / (2 * ms) if ms > 0 else 0.0


def kurtosis(f: Tensor) -> float:
    """$E[f^4] / E[f^2]^2$: 3 for a Gaussian, 6 for a rectified one."""
    square = f.square()
    ms = float(_weights() @ square)
    return float(_weights() @ (square / ms).square()) if ms > 0 else 1.0


def linear_coefficient(f: Tensor) -> float:
    """$a_1 = E[f(z) z]$: the part of $f$ that is linear in the source."""
    return float(_hermite()[1] @ f)


def kernel(f: Tensor, ms: float, correlations: Sequence[float]) -> list[float]:
    r"""$E[f(z) f(z')] = \sum_k a_k^2 \rho^k$ for each correlation $\rho$ of $z$ and $z'$, $a_k = E[f h_k]$."""
    wanted = {rho for rho in correlations if 0 < abs(rho) < 1}
    squares = (_hermite() @ f).square().tolist() if wanted or 0.0 in correlations else [0.0]
    rest = max(ms - sum(squares), 0.0)
    kernel_at = {1.0: ms, 0.0: squares[0]}
    for rho in wanted:
        total = rest * rho
        for square in reversed(squares):
            total = total * rho + square
        kernel_at[rho] = total
    return [kernel_at.get(rho, ms) for rho in correlations]


def ranks(f: Tensor) -> Tensor:
    """At each node, the probability that the function is smaller elsewhere; equal values count one half."""
    values, places = torch.unique(f, return_inverse=True)
    mass = torch.zeros_like(values).index_add(0, places, _weights())
    return (mass.cumsum(0) - mass / 2)[places]


def replace_non_finite(f: Tensor) -> Tensor | None:
    """`f` with its non-finite values replaced by its mean; None if there are too many of them."""
    finite = torch.isfinite(f)
    if bool(finite.all()):
        return f
    mass = float(_weights() @ finite.to(f.dtype))
    if mass < 1 - MAX_NON_FINITE_MASS:
        return None
    filled = torch.where(finite, f, torch.zeros_like(f))
    return torch.where(finite, f, torch.full_like(f, float(_weights() @ filled) / mass))
