"""Sums over many tensors: norms, inner products and swallowed entries, with one transfer from the device each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

ULPS = 4.0  # ours: where a tensor's update is above this many units in the last place, hardly any entry is swallowed


def norms(tensors: Sequence[Tensor]) -> list[float]:
    """Euclidean norms, summed in float32 or better."""
    return _numbers([torch.linalg.vector_norm(each, dtype=_wide(each)) for each in tensors])


def inner(left: Sequence[Tensor], right: Sequence[Tensor]) -> list[float]:
    """Inner products, tensor by tensor."""
    return _numbers([_dot(a, b) for a, b in zip(left, right, strict=True)])


def differences(new: Sequence[Tensor], old: Sequence[Tensor]) -> list[Tensor]:
    """new - old, in float32 or better: the difference of two bfloat16 numbers is not always one."""
    return [a.detach().to(_wide(a)) - b.to(_wide(b)) for a, b in zip(new, old, strict=True)]


def root_mean_square(tensors: Sequence[Tensor]) -> float:
    """rms over all elements of all tensors."""
    count = sum(each.numel() for each in tensors)
    return math.sqrt(sum(norm**2 for norm in norms(tensors)) / count) if count else math.nan


def swallowed(grad: Tensor, update: Tensor) -> float | None:
    """Share of the entries with a gradient that did not move; None if there is no such entry."""
    pushed = grad != 0
    count = int(pushed.sum())
    still = int(((update == 0) & pushed).sum())
    return still / count if count else None


def may_swallow(update_norm: float, weight_norm: float, dtype: torch.dtype) -> bool:
    """Whether the update is so small, next to the weight, that rounding can matter."""
    return update_norm < ULPS * torch.finfo(dtype).eps * weight_norm


def _dot(a: Tensor, b: Tensor) -> Tensor:
    a, b = a.to(_wide(a)).reshape(-1), b.to(_wide(b)).reshape(-1)
    return torch.vdot(a, b).real if a.is_complex() else torch.dot(a, b)


def _wide(tensor: Tensor) -> torch.dtype:
    if tensor.is_complex():
        return torch.complex128 if tensor.dtype == torch.complex128 else torch.complex64
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _numbers(scalars: Sequence[Tensor]) -> list[float]:
    """One copy from each device, not one a number."""
    if not scalars:
        return []
    homes = {each.device for each in scalars}
    if len(homes) > 1:
        scalars = [each.cpu() for each in scalars]
    return [float(each) for each in torch.stack([each.double() for each in scalars]).tolist()]
