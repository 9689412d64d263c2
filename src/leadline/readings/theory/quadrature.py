r"""Functions of a Gaussian source, by their values at quadrature nodes: moments, and the kernel between neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from leadline.nn.activations import quadrature_nodes

ORDERS = (
    24  # Hermite orders kept; what is left of a kink's second moment (relu: 0.3 %) goes to one order more
)
MOST_LOST = (
    0.5  # of the Gaussian mass at nodes where a function is no number; ours: beyond, its moments mean nothing
)


def nodes() -> Tensor:
    """Points $z_k$ of the fine rule for $z \\sim N(0, 1)$."""
    return quadrature_nodes()[0]


def _weights() -> Tensor:
    return quadrature_nodes()[1]


@cache
def _hermite() -> Tensor:
    r"""Rows $h_k(z) w / \sqrt{k!}$ of the normalised Hermite polynomials, so that a product with $f$ gives $a_k$."""
    z = nodes()
    rows = [torch.ones_like(z), z]
    for k in range(1, ORDERS - 1):
        rows.append((z * rows[k] - math.sqrt(k) * rows[k - 1]) / math.sqrt(k + 1))
    return torch.stack(rows) * _weights()


def moments(f: Tensor) -> tuple[float, float]:
    """$E[f]$ and $E[f^2]$."""
    weights = _weights()
    return float(weights @ f), float(weights @ f.square())


def moments_of_product(f: Tensor, g: Tensor) -> float:
    """$E[f g]$."""
    return float((_weights() * f) @ g)


def kurtosis(f: Tensor) -> float:
    """$E[f^4] / E[f^2]^2$: 3 for a Gaussian, 6 for its rectified half."""
    square = f.square()
    ms = float(_weights() @ square)
    return float(_weights() @ (square / ms).square()) if ms > 0 else 1.0


def slope(f: Tensor) -> float:
    """$a_1 = E[f(z) z]$: the part of $f$ that is linear in the source."""
    return float(_hermite()[1] @ f)


def kernel(f: Tensor, ms: float, correlations: Sequence[float]) -> list[float]:
    r"""$E[f(z) f(z')] = \sum_k a_k^2 \rho^k$ for each correlation $\rho$ of $z$ and $z'$, $a_k = E[f h_k]$."""
    wanted = {rho for rho in correlations if 0 < abs(rho) < 1}
    squares = (_hermite() @ f).square().tolist() if wanted or 0.0 in correlations else [0.0]
    rest = max(ms - sum(squares), 0.0)
    found = {1.0: ms, 0.0: squares[0]}
    for rho in wanted:
        total = rest * rho
        for square in reversed(squares):
            total = total * rho + square
        found[rho] = total
    return [found.get(rho, ms) for rho in correlations]


def ranks(f: Tensor) -> Tensor:
    """At each node, the probability that the function is smaller elsewhere; where it is equal, one half of that."""
    below = (f[None, :] < f[:, None]).to(f.dtype) + 0.5 * (f[None, :] == f[:, None]).to(f.dtype)
    return below @ _weights()


def cleaned(f: Tensor) -> Tensor | None:
    """`f` with its few values that are no numbers replaced by its mean; None if they are too many."""
    good = torch.isfinite(f)
    if bool(good.all()):
        return f
    mass = float(_weights() @ good.to(f.dtype))
    if mass < 1 - MOST_LOST:
        return None
    filled = torch.where(good, f, torch.zeros_like(f))
    return torch.where(good, f, torch.full_like(f, float(_weights() @ filled) / mass))
