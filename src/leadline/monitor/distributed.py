"""Several processes that train one model: who writes, who has seen what, and when all of them measure shards together.

Only the norms of shards need all processes at once; everything else goes through the key-value store that PyTorch's
rendezvous keeps anyway, which nobody has to wait for. A process that steps less often than the others (uneven data)
can so never hang on us.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from leadline.monitor.budget import Level, Timetable
from leadline.records.run import Event, note_from_json, note_to_json
from leadline.tracer.sharded import is_shard


class Ranks:
    """This process among the others; alone, if there are no others."""

    def __init__(self, model: nn.Module) -> None:
        parallel = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if parallel else 0
        self.world = dist.get_world_size() if parallel else 1
        self.sharded = any(is_shard(parameter) for parameter in model.parameters())
        self._device = next((each.device for each in model.parameters()), torch.device("cpu"))
        self._store: Any = dist.distributed_c10d._get_default_store() if self.world > 1 else None
        self._key = self._own_key()
        self._posted = 0
        self._read = [0] * self.world

    def _own_key(self) -> str:
        """Under which the n-th watch of every process meets the n-th of the others."""
        number = 0 if self._store is None else self._store.add(f"leadline/watches/{self.rank}", 1)
        return f"leadline/{number}"

    @property
    def writes(self) -> bool:
        """The first process keeps the run file."""
        return self.rank == 0

    @property
    def highest(self) -> Level:
        """What is measured by plan. In data parallel training all wait for the slowest, so only one takes samples."""
        if self.writes:
            return Level.TRACE
        return Level.UPDATES if self.sharded else Level.GRADIENTS

    def agree(self, table: Timetable) -> None:
        """Where shards are measured, all must do so at the same step: the first process's plan is everybody's."""
        if not self.sharded or self.world == 1:
            return
        levels = list(table.due)
        due = torch.tensor([table.due[level] for level in levels], dtype=torch.int64, device=self._device)
        dist.broadcast(due, src=0)
        table.due = dict(zip(levels, due.tolist(), strict=True))

    def post(self, event: Event) -> None:
        """Tell the first process."""
        if self._store is None or self.writes:
            return
        self._store.set(f"{self._key}/{self.rank}/{self._posted}", note_to_json(event))
        self._posted += 1
        self._store.add(f"{self._key}/{self.rank}", 1)

    def collect(self) -> list[tuple[int, Event]]:
        """What the others posted since the last time, with who it was."""
        found: list[tuple[int, Event]] = []
        if self._store is None or not self.writes:
            return found
        for rank in range(1, self.world):
            there = self._store.add(f"{self._key}/{rank}", 0)
            for number in range(self._read[rank], there):
                text = self._store.get(f"{self._key}/{rank}/{number}").decode()
                found.append((rank, note_from_json(text, Event)))
            self._read[rank] = there
        return found
