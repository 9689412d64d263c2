"""Positions: learned and sinusoidal tables that are added, and rotary angles that turn queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.errors import InputError

BASE = 10000.0  # longest wavelength / 2 pi (Vaswani et al. 2017, section 3.5; kept by RoPE, arXiv 2104.09864)


def sinusoidal_table(length: int, width: int) -> Tensor:
    r"""(length, width) table $\sqrt2\,\sin(t\,\omega_i)$ and $\sqrt2\,\cos(t\,\omega_i)$, $\omega_i =
    10000^{-2i/d}$.

    Sines in the even columns, cosines in the odd ones (Vaswani et al. 2017, section 3.5), times $\sqrt2$ so
    that the second moment is 1 as for every other part of the stream.
    """
    angles = _angles(length, width)
    table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :width]
    return table.float() * 2**0.5


def rotary_tables(length: int, head_width: int) -> tuple[Tensor, Tensor]:
    r"""(cos, sin) of $t\,\theta_i$, $\theta_i = 10000^{-2i/d_h}$, each (length, head_width), the two halves
    alike."""
    if head_width % 2:
        raise InputError(
            expected="an even number of features a head for rotary positions",
            got=f"width / heads = {head_width}",
            fix="choose width and heads so that width / heads is even, or other positions",
        )
    angles = _angles(length, head_width)
    both = torch.cat((angles, angles), dim=-1)
    return both.cos().float(), both.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    r"""`x` (batch, heads, time, head_width) turned in the planes $(x_i, x_{i+d_h/2})$ by its position's
    angles.

    Scalar products of turned vectors depend on the difference of positions alone (Su et al. 2021, arXiv
    2104.09864).
    """
    half = x.shape[-1] // 2
    swapped = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos + swapped * sin).to(x.dtype)


def _angles(length: int, width: int) -> Tensor:
    frequency = BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(length, dtype=torch.float64)[:, None] * frequency[None, :]
