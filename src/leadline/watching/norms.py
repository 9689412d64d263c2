"""Norms of many tensors at once: fused where PyTorch can, right at the extremes, and not waited for on a device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from leadline import stats

LARGE = (
    2**20
)  # elements from which a norm is taken in two levels; one float32 sum over 5 million squares is off by 0.4 %
_REDUCED = (torch.float16, torch.bfloat16)


class Norms:
    """One number a tensor, perhaps still on a device. `read` fetches them; None: cannot be measured."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._size = len(tensors)
        self._pending: list[tuple[list[int], Tensor]] = []
        self._corrected: dict[int, float] = {}
        for positions, group in _grouped(tensors):
            self._pending.append((positions, _fused(group)))
        self.ready = all(stacked.device.type == "cpu" for _, stacked in self._pending)
        if self.ready:
            self._correct(tensors)

    def _correct(self, tensors: Sequence[Tensor]) -> None:
        """Squares that left float32's range gave 0 or infinity: measure these again, scaled."""
        for position, value in enumerate(self.read()):
            if value is not None and not stats.SAFE_PEAK[0] < value < stats.SAFE_PEAK[1]:
                found = stats.settle([stats.measure(_plain(tensors[position]))])[0]
                self._corrected[position] = found.rms * math.sqrt(found.count) if found.count else 0.0

    def read(self) -> list[float | None]:
        """The numbers, in the order of the tensors; waits for a device that is not done."""
        found: list[float | None] = [None] * self._size
        for positions, stacked in self._pending:
            for position, value in zip(positions, stacked.tolist(), strict=True):
                found[position] = value
        for position, value in self._corrected.items():
            found[position] = value
        return found


def _grouped(tensors: Sequence[Tensor]) -> list[tuple[list[int], list[Tensor]]]:
    """Readable tensors with their positions, by device and dtype."""
    groups: dict[tuple[torch.device, torch.dtype], tuple[list[int], list[Tensor]]] = {}
    for position, tensor in enumerate(tensors):
        if stats.unobservable(tensor):
            continue
        plain = _plain(tensor)
        positions, group = groups.setdefault((plain.device, plain.dtype), ([], []))
        positions.append(position)
        group.append(plain)
    return list(groups.values())


def _plain(tensor: Tensor) -> Tensor:
    """Strided and real, with the same norm."""
    if tensor.layout is torch.strided and not tensor.is_complex():
        return tensor
    if tensor.layout is torch.sparse_coo:
        return _plain(tensor.coalesce().values())
    if tensor.layout is not torch.strided:
        return _plain(tensor.values())
    return torch.view_as_real(tensor)


def _fused(group: list[Tensor]) -> Tensor:
    large = [tensor for tensor in group if tensor.numel() > LARGE and tensor.device.type == "cpu"]
    dtype = torch.float32 if group[0].dtype in _REDUCED else None
    if not large:
        return torch.stack(torch._foreach_norm(group, 2, dtype))
    rest = [tensor for tensor in group if tensor.numel() <= LARGE]
    small = iter(torch._foreach_norm(rest, 2, dtype) if rest else ())
    return torch.stack([_in_rows(tensor) if tensor.numel() > LARGE else next(small) for tensor in group])


def _in_rows(tensor: Tensor) -> Tensor:
    flat = tensor.reshape(-1)
    whole = flat.numel() // stats.ROW * stats.ROW
    dtype = torch.float32 if tensor.dtype in _REDUCED else None
    rows = torch.linalg.vector_norm(flat[:whole].view(-1, stats.ROW), dim=1, dtype=dtype)
    rest = torch.linalg.vector_norm(flat[whole:], dtype=dtype)
    found: Tensor = torch.linalg.vector_norm(torch.cat((rows, rest.reshape(1))))
    return found


def total(norms: Sequence[float]) -> float:
    """The norm of all tensors taken as one vector; NaN if one of them is, which `hypot` beside an infinity is not."""
    return math.nan if any(math.isnan(each) for each in norms) else math.hypot(*norms)
