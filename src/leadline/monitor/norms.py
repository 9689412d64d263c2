"""Norms of gradients, updates and parameters: fused where PyTorch can, right at the extremes and under sharding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from leadline.tracer import stats
from leadline.tracer.sharded import is_shard

LARGE = (
    2**20
)  # elements from which a norm is taken in two levels; one float32 sum over 5 million squares is off by 0.4 %
_REDUCED = (torch.float16, torch.bfloat16)


class Norms:
    """One number a tensor, perhaps still on a device. `read` fetches them; None: cannot be measured."""

    def __init__(self, tensors: list[Tensor], *, simple: bool = False) -> None:
        """`simple` promises what `is_simple` asks of every tensor; then none is looked at one by one."""
        self._size = len(tensors)
        self._pending: list[tuple[list[int] | None, Tensor]] = []
        self._known: list[float | None] | None = None
        if simple and tensors:
            self._pending.append((None, torch.stack(torch._foreach_norm(tensors))))
        else:
            self._pending += [(positions, _fused(group)) for positions, group in _grouped(tensors)]
        self.ready = all(stacked.device.type == "cpu" for _, stacked in self._pending)
        if self.ready:
            self._known = _corrected(self.read(), tensors)

    def read(self) -> list[float | None]:
        """The numbers, in the order of the tensors; waits for a device that is not done."""
        if self._known is not None:
            return self._known
        found: list[float | None] = [None] * self._size
        for positions, stacked in self._pending:
            if positions is None:
                return stacked.tolist()
            for position, value in zip(positions, stacked.tolist(), strict=True):
                found[position] = value
        return found


def one_norm(tensor: Tensor) -> Tensor | Norms:
    """Of one tensor, in the middle of somebody's pass: one kernel where that is right. `read_one` fetches it."""
    return torch.linalg.vector_norm(tensor) if is_simple(tensor) else Norms([tensor])


def read_one(norm: Tensor | Norms) -> float | None:
    """None: cannot be measured. Waits for a device that is not done."""
    return norm.item() if isinstance(norm, Tensor) else norm.read()[0]


def is_simple(tensor: Tensor) -> bool:
    """A plain float32 tensor in this machine's memory, not large."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided and tensor.is_cpu
    return plain and tensor.dtype is torch.float32 and tensor.numel() <= LARGE


def _corrected(found: list[float | None], tensors: list[Tensor]) -> list[float | None]:
    """Squares that left float32's range gave 0 or infinity: these are measured again, scaled."""
    low, high = stats.SAFE_PEAK
    for position, value in enumerate(found):
        if value is not None and not low < value < high:
            again = stats.fetch_stats([stats.measure(_plain(tensors[position]))])[0]
            found[position] = again.rms * math.sqrt(again.count) if again.count else 0.0
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


# Norms of tensors that may be sharded over processes: $\|x\|^2$ is the sum of the shards' $\|x_r\|^2$.


class ShardNorms:
    """As `Norms`, with shards (DTensor) summed over the processes that hold them: then all of these must call it.

    `parts` are the tensors as this process has them, or something of the same shapes that is asked about instead.
    """

    def __init__(
        self, tensors: list[Tensor], parts: list[Tensor] | None = None, *, simple: bool = False
    ) -> None:
        sharded = [] if simple else [at for at, tensor in enumerate(tensors) if is_shard(tensor)]
        self._norms = Norms(local(tensors, simple=simple) if parts is None else parts, simple=simple)
        self._whole = _summed(tensors, sharded, self._norms) if sharded else {}
        self.ready = self._norms.ready

    def read(self) -> list[float | None]:
        found = self._norms.read()
        for at, norm in self._whole.items():
            found[at] = norm
        return found


def local(tensors: list[Any], *, simple: bool = False) -> list[Tensor]:
    """The parts that this process has: of a shard its own, of any other tensor all."""
    return tensors if simple else [each.to_local() if is_shard(each) else each for each in tensors]


def _summed(tensors: Sequence[Any], sharded: Sequence[int], norms: Norms) -> dict[int, float]:
    """Squares in double precision, summed along every dimension of the mesh over which the tensor is split."""
    local = norms.read()
    groups: dict[tuple[Any, tuple[int, ...]], list[int]] = {}
    for at in sharded:
        split = tuple(dim for dim, placed in enumerate(tensors[at].placements) if placed.is_shard())
        groups.setdefault((tensors[at].device_mesh, split), []).append(at)
    whole: dict[int, float] = {}
    for (mesh, split), members in groups.items():
        squares = torch.tensor([(local[at] or 0.0) ** 2 for at in members], dtype=torch.float64)
        squares = squares.to(mesh.device_type)
        for dim in split:
            dist.all_reduce(squares, group=mesh.get_group(dim))
        whole.update(zip(members, squares.sqrt().tolist(), strict=True))
    return whole
