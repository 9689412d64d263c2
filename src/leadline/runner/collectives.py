"""One process of several is about to run a pass alone: collective operations would wait for the others for ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch.distributed as dist

from leadline.errors import LeadlineError

COLLECTIVES = (
    *(
        "all_reduce",
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_to_all",
        "all_to_all_single",
    ),
    *(
        "barrier",
        "broadcast",
        "broadcast_object_list",
        "gather",
        "gather_object",
        "monitored_barrier",
        "recv",
    ),
    *("reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send"),
)


class CollectiveError(LeadlineError):
    """A pass that runs in one process called a collective operation."""


def rank_and_world_size() -> tuple[int, int]:
    """This process's rank and the number of processes; 0 and 1 without distributed training."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


@contextmanager
def forbid_collectives() -> Iterator[None]:
    """Raise CollectiveError where a pass would wait for other processes; nothing changes in a single process."""
    if rank_and_world_size()[1] == 1:
        yield
        return
    places = [
        (module, name, getattr(module, name))
        for module in (dist, dist.distributed_c10d)
        for name in COLLECTIVES
        if hasattr(module, name)
    ]
    try:
        for module, name, _ in places:
            setattr(module, name, _refuse(name))
        yield
    finally:
        for module, name, original in places:
            setattr(module, name, original)


def _refuse(name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise CollectiveError(f"the pass calls torch.distributed.{name}, which waits for the other processes")

    return refuse
