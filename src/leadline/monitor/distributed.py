"""The process group of a watched run: which process writes, what the others report, and when all measure shards.

Only the norms of shards need all processes at the same time. Everything else goes through the key-value store of
PyTorch's rendezvous, which never blocks. So a process that steps less often than the others (uneven data) cannot hang
in the watch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from leadline.monitor.budget import Level, MeasurementSchedule
from leadline.monitor.loop_gradients import fingerprint
from leadline.records.run import Event, note_from_json, note_to_json
from leadline.tracer.sharded import is_shard

# Heuristic: steps after which replicas are compared; by then those that began alike have drifted.
MIN_COMPARED_STEP = 8


class Ranks:
    """This process among the processes that train the model; rank 0 of 1 without distributed training."""

    def __init__(self, model: nn.Module) -> None:
        is_parallel = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if is_parallel else 0
        self.world_size = dist.get_world_size() if is_parallel else 1
        self.sharded = any(is_shard(parameter) for parameter in model.parameters())
        self._device = next((each.device for each in model.parameters()), torch.device("cpu"))
        self._store: Any = dist.distributed_c10d._get_default_store() if self.world_size > 1 else None
        self._key = self._watch_key()
        self._posted = 0
        self._uncompared: list[int] = []
        """Steps at which not all processes have posted their weights yet."""
        self._read = [0] * self.world_size

    def _watch_key(self) -> str:
        """Return the key that the n-th watch of every process shares."""
        number = 0 if self._store is None else self._store.add(f"leadline/watches/{self.rank}", 1)
        return f"leadline/{number}"

    @property
    def is_writer(self) -> bool:
        """True for the process that writes the run file."""
        return self.rank == 0

    @property
    def max_level(self) -> Level:
        """The closest planned measurement. In data-parallel training all wait for the slowest, so only one samples."""
        if self.is_writer:
            return Level.TRACE
        return Level.UPDATES if self.sharded else Level.GRADIENTS

    def synchronize(self, schedule: MeasurementSchedule) -> None:
        """Give every process the schedule of the first one, because all must measure shards at the same step."""
        if not self.sharded or self.world_size == 1:
            return
        levels = list(schedule.due)
        due = torch.tensor([schedule.due[level] for level in levels], dtype=torch.int64, device=self._device)
        dist.broadcast(due, src=0)
        schedule.due = dict(zip(levels, due.tolist(), strict=True))

    def drift(self, step: int, model: nn.Module) -> int | None:
        """Compare the weights after 8 steps, 16, 32 and so on, as `compare` does; not those that are sharded."""
        if self._store is None or self.sharded or step < MIN_COMPARED_STEP or step.bit_count() > 1:
            return None
        return self.compare(step, fingerprint(model.parameters()))

    def compare(self, step: int, weights: int) -> int | None:
        """Post what identifies the weights after this step; return how many processes differ from the first.

        None unless this is the first process, and all have come to the last step that it can compare.
        """
        if self._store is None:
            return None
        self._store.set(f"{self._key}/weights/{step}/{self.rank}", str(weights))
        self._store.add(f"{self._key}/weights/{step}", 1)
        if not self.is_writer:
            return None
        self._uncompared.append(step)
        drift = None
        for each in tuple(self._uncompared):
            if self._store.add(f"{self._key}/weights/{each}", 0) == self.world_size:
                self._uncompared.remove(each)
                keys = [f"{self._key}/weights/{each}/{rank}" for rank in range(self.world_size)]
                first, *others = [self._store.get(key) for key in keys]
                drift = sum(other != first for other in others)
        return drift

    def post(self, event: Event) -> None:
        """Send an event to the first process."""
        if self._store is None or self.is_writer:
            return
        self._store.set(f"{self._key}/{self.rank}/{self._posted}", note_to_json(event))
        self._posted += 1
        self._store.add(f"{self._key}/{self.rank}", 1)

    def collect(self) -> list[tuple[int, Event]]:
        """Return the events that other processes have posted since the last call, each with its rank."""
        events: list[tuple[int, Event]] = []
        if self._store is None or not self.is_writer:
            return events
        for rank in range(1, self.world_size):
            count = self._store.add(f"{self._key}/{rank}", 0)
            for number in range(self._read[rank], count):
                text = self._store.get(f"{self._key}/{rank}/{number}").decode()
                events.append((rank, note_from_json(text, Event)))
            self._read[rank] = count
        return events
