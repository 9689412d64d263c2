r"""Norms of tensors that may be sharded over processes: $\|x\|^2$ is the sum of the shards' $\|x_r\|^2$."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from leadline.tracing.gathered import is_shard
from leadline.watching.norms import Norms


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
