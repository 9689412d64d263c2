"""Norms of gradients, updates and parameters: fused where possible, exact at the extremes and under sharding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from leadline.tracer import stats
from leadline.tracer.sharded import is_shard

# Derived: elements above which a norm is summed in two levels; one float32 sum over 5 million squares is off by 0.4 %.
MAX_SINGLE_SUM = 2**20
_HALF_PRECISION = (torch.float16, torch.bfloat16)


class Norms:
    """One norm per tensor, possibly still on a device. `read` fetches them; None marks a tensor without values."""

    def __init__(self, tensors: list[Tensor], *, simple: bool = False) -> None:
        """`simple` promises that `is_simple` holds for every tensor, which saves a test of each one."""
        self._size = len(tensors)
        self._pending: list[tuple[list[int] | None, Tensor]] = []
        self._values: list[float | None] | None = None
        if simple and tensors:
            self._pending.append((None, torch.stack(torch._foreach_norm(tensors))))
        else:
            self._pending += [(positions, _fused(group)) for positions, group in _grouped(tensors)]
        if all(stacked.device.type == "cpu" for _, stacked in self._pending):
            self._values = _corrected(self.read(), tensors)

    def read(self) -> list[float | None]:
        """Return the norms in the order of the tensors; waits for a device that still computes."""
        if self._values is None and len(self._pending) == 1 and self._pending[0][0] is None:
            self._values = self._pending.pop()[1].tolist()  # by far the most frequent case
        elif self._values is None:
            self.receive(stats.transfer(self.pending()))
        return self._values or []

    def pending(self) -> list[Tensor]:
        """Norms that were not read yet."""
        return [stacked for _, stacked in self._pending]

    def receive(self, known: stats.Known) -> None:
        """Take the pending norms from what was transferred."""
        if self._values is not None:
            return
        norms: list[float | None] = [None] * self._size
        for positions, stacked in self._pending:
            indices = range(self._size) if positions is None else positions
            for position, value in zip(indices, known[id(stacked)], strict=True):
                norms[position] = value
        self._values, self._pending = norms, []


def one_norm(tensor: Tensor) -> Tensor | Norms:
    """Return the norm of one tensor inside a user's pass: one kernel where that is exact. `read_one` fetches it."""
    return torch.linalg.vector_norm(tensor) if is_simple(tensor) else Norms([tensor])


def read_one(norm: Tensor | Norms) -> float | None:
    """Return the norm, or None if the tensor has no readable values. Waits for a device that still computes."""
    return norm.item() if isinstance(norm, Tensor) else norm.read()[0]


def is_simple(tensor: Tensor) -> bool:
    """True for a plain float32 tensor on the CPU that is small enough for one sum."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided and tensor.is_cpu
    return plain and tensor.dtype is torch.float32 and tensor.numel() <= MAX_SINGLE_SUM


def _corrected(norms: list[float | None], tensors: list[Tensor]) -> list[float | None]:
    """Measure tensors again, with scaling, whose squares left float32's range and gave 0 or infinity."""
    low, high = stats.SAFE_PEAK
    for position, value in enumerate(norms):
        if value is not None and not low < value < high:
            again = stats.fetch_stats([stats.measure(_plain(tensors[position]))])[0]
            norms[position] = again.rms * math.sqrt(again.count) if again.count else 0.0
    return norms


def _grouped(tensors: Sequence[Tensor]) -> list[tuple[list[int], list[Tensor]]]:
    """Group the readable tensors, with their positions, by device and dtype."""
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
    """Return a strided, real tensor with the same norm."""
    if tensor.layout is torch.strided and not tensor.is_complex():
        return tensor
    if tensor.layout is torch.sparse_coo:
        return _plain(tensor.coalesce().values())
    if tensor.layout is not torch.strided:
        return _plain(tensor.values())
    return torch.view_as_real(tensor)


def _fused(group: list[Tensor]) -> Tensor:
    large = [tensor for tensor in group if tensor.numel() > MAX_SINGLE_SUM and tensor.device.type == "cpu"]
    dtype = torch.float32 if group[0].dtype in _HALF_PRECISION else None
    if not large:
        return torch.stack(torch._foreach_norm(group, 2, dtype))
    rest = [tensor for tensor in group if tensor.numel() <= MAX_SINGLE_SUM]
    small = iter(torch._foreach_norm(rest, 2, dtype) if rest else ())
    norms = [_two_level_norm(tensor) if tensor.numel() > MAX_SINGLE_SUM else next(small) for tensor in group]
    return torch.stack(norms)


def _two_level_norm(tensor: Tensor) -> Tensor:
    flat = tensor.reshape(-1)
    in_rows = flat.numel() // stats.ROW_SIZE * stats.ROW_SIZE
    dtype = torch.float32 if tensor.dtype in _HALF_PRECISION else None
    rows = torch.linalg.vector_norm(flat[:in_rows].view(-1, stats.ROW_SIZE), dim=1, dtype=dtype)
    rest = torch.linalg.vector_norm(flat[in_rows:], dtype=dtype)
    norm: Tensor = torch.linalg.vector_norm(torch.cat((rows, rest.reshape(1))))
    return norm


def total(norms: Sequence[float]) -> float:
    """Return the norm of all tensors as one vector; NaN if any norm is NaN, where `hypot` could return infinity."""
    return math.nan if any(math.isnan(each) for each in norms) else math.hypot(*norms)


# Norms of tensors that may be sharded over processes: $\|x\|^2$ is the sum of $\|x_r\|^2$ over the shards.


class ShardNorms:
    """Like `Norms`, with shards (DTensor) summed over the processes that hold them, all of which must call it.

    `parts` are this process's parts of the tensors, or other tensors of the same shapes to measure instead.
    """

    def __init__(
        self, tensors: list[Tensor], parts: list[Tensor] | None = None, *, simple: bool = False
    ) -> None:
        sharded = [] if simple else [position for position, tensor in enumerate(tensors) if is_shard(tensor)]
        self._norms = Norms(local(tensors, simple=simple) if parts is None else parts, simple=simple)
        self._shard_norms = _sum_over_shards(tensors, sharded, self._norms) if sharded else {}

    @property
    def own(self) -> Norms:
        """The norms of this process's parts."""
        return self._norms

    def read(self) -> list[float | None]:
        norms = self._norms.read()
        for position, norm in self._shard_norms.items():
            norms[position] = norm
        return norms


def local(tensors: list[Any], *, simple: bool = False) -> list[Tensor]:
    """Return this process's part of each tensor: its shard, or the whole tensor if it is not sharded."""
    return tensors if simple else [each.to_local() if is_shard(each) else each for each in tensors]


def _sum_over_shards(tensors: Sequence[Any], sharded: Sequence[int], norms: Norms) -> dict[int, float]:
    """Sum squares in double precision along every mesh dimension over which the tensor is split."""
    local_norms = norms.read()
    groups: dict[tuple[Any, tuple[int, ...]], list[int]] = {}
    for position in sharded:
        placements = tensors[position].placements
        split = tuple(dim for dim, placement in enumerate(placements) if placement.is_shard())
        groups.setdefault((tensors[position].device_mesh, split), []).append(position)
    shard_norms: dict[int, float] = {}
    for (mesh, split), members in groups.items():
        squares = torch.tensor([(local_norms[each] or 0.0) ** 2 for each in members], dtype=torch.float64)
        squares = squares.to(mesh.device_type)
        for dim in split:
            dist.all_reduce(squares, group=mesh.get_group(dim))
        shard_norms.update(zip(members, squares.sqrt().tolist(), strict=True))
    return shard_norms
