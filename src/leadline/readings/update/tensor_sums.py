"""Norms, inner products and rounding losses over lists of tensors, each with one transfer from the device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# Heuristic: an update above this many units in the last place of its weight is hardly ever rounded away.
MAX_ROUNDED_ULPS = 4.0
# Heuristic: power iteration is then within a few percent of the largest singular value.
POWER_ITERATIONS = 12


def norms(tensors: Sequence[Tensor]) -> list[float]:
    """Euclidean norm of each tensor, summed in float32 or better."""
    return _numbers([torch.linalg.vector_norm(_promotable(each), dtype=_wide(each)) for each in tensors])


def total_norm(tensors: Sequence[Tensor]) -> float:
    """Euclidean norm of all tensors together."""
    return math.sqrt(sum(norm**2 for norm in norms(tensors)))


def inner_products(left: Sequence[Tensor], right: Sequence[Tensor]) -> list[float]:
    """Inner product of each pair of tensors."""
    return _numbers([_dot(a, b) for a, b in zip(left, right, strict=True)])


def differences(new: Sequence[Tensor], old: Sequence[Tensor]) -> list[Tensor]:
    """new - old, in float32 or better, because bfloat16 cannot hold every difference of two bfloat16 numbers."""
    return [a.detach().to(_wide(a)) - b.to(_wide(b)) for a, b in zip(new, old, strict=True)]


def root_mean_square(tensors: Sequence[Tensor]) -> float:
    """Root mean square over all elements of all tensors."""
    count = sum(each.numel() for each in tensors)
    return math.sqrt(sum(norm**2 for norm in norms(tensors)) / count) if count else math.nan


def swallowed_share(grad: Tensor, update: Tensor) -> float | None:
    """Share of the entries with a nonzero gradient that did not move; None if no entry has one."""
    has_gradient = grad != 0
    count = int(has_gradient.sum())
    unmoved = int(((update == 0) & has_gradient).sum())
    return unmoved / count if count else None


def may_swallow(update_norm: float, weight_norm: float, dtype: torch.dtype) -> bool:
    """Whether the update is so small relative to its weight that rounding can swallow entries."""
    return update_norm < MAX_ROUNDED_ULPS * torch.finfo(dtype).eps * weight_norm


def _dot(a: Tensor, b: Tensor) -> Tensor:
    a, b = a.to(_wide(a)).reshape(-1), b.to(_wide(b)).reshape(-1)
    return torch.vdot(a, b).real if a.is_complex() else torch.dot(a, b)


def _promotable(tensor: Tensor) -> Tensor:
    """The tensor in a dtype that torch can promote, which the 8-bit floating-point dtypes are not."""
    return tensor.float() if tensor.element_size() == 1 else tensor


def _wide(tensor: Tensor) -> torch.dtype:
    if tensor.is_complex():
        return torch.complex128 if tensor.dtype == torch.complex128 else torch.complex64
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _numbers(scalars: Sequence[Tensor]) -> list[float]:
    """The scalars as floats, with one copy per device instead of one per scalar."""
    if not scalars:
        return []
    devices = {each.device for each in scalars}
    if len(devices) > 1:
        scalars = [each.cpu() for each in scalars]
    if len({each.dtype for each in scalars}) > 1:
        scalars = [each.double() for each in scalars]
    return [float(each) for each in torch.stack(list(scalars)).tolist()]


def largest_singular_value(matrix: Tensor) -> float:
    """By power iteration from a fixed start; at most the true one."""
    vector = torch.randn(matrix.size(1), generator=torch.Generator().manual_seed(0)).to(matrix.device)
    norm, transposed = 0.0, matrix.T
    for _ in range(POWER_ITERATIONS):
        vector = transposed @ (matrix @ vector)
        norm = float(torch.linalg.vector_norm(vector))
        if not norm > 0:
            return norm
        vector = vector / norm
    return math.sqrt(norm)
