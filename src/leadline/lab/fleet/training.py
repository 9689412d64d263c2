"""A fleet cut into chunks that stay in the cache, each trained through all of its steps before the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from leadline.lab.fleet.plan import Net, Task
from leadline.lab.fleet.stack import Stack, forward, stack_up, step

R = TypeVar("R")

PIECES_A_THREAD = 4  # a thread left idle at the end then costs an eighth at most (derived, for two threads)
CHUNK_NUMBERS = 2**16  # in one layer of a chunk, 256 kB in float32; calibrated: docs/log.md, 2026-11-16


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Of each network, in the order in which they were given."""

    losses: Tensor
    """(networks, steps): on the batch of each step, before it."""
    accuracy: Tensor
    """(networks,): share of all samples that are told right after the last step."""


def train_fleet(
    nets: Sequence[Net],
    task: Task,
    *,
    chunk: int | None = None,
    progress: Callable[[int, int, str], object] | None = None,
) -> Trained:
    """Train each network with plain SGD as if it were alone. `chunk`: networks at once; None: what fits the cache.

    Gives what `train_alone` gives, but for the order of additions. Numbers below the normal range are taken as zero:
    where gradients vanish they would cost a hundred times what others do, and change nothing.
    """
    losses = torch.empty(len(nets), len(task.batches), dtype=task.inputs.dtype)
    accuracy = torch.empty(len(nets), dtype=task.inputs.dtype)
    done = 0
    groups = list(chunks(nets, chunk or fitting_chunk(task)))
    work = [partial(_train_chunk, [nets[index] for index in mine], task) for mine in groups]
    for mine, (seen, right) in zip(groups, side_by_side(work), strict=True):
        losses[mine], accuracy[mine] = seen, right
        done += len(mine)
        if progress is not None:
            progress(done, len(nets), "networks")
    return Trained(losses=losses, accuracy=accuracy)


@torch.no_grad()
def _train_chunk(nets: Sequence[Net], task: Task) -> tuple[Tensor, Tensor]:
    """Losses and accuracies of networks that fit the cache together."""
    with flushing_denormals():
        stack = stack_up(nets, task)
        steps = [step(stack, task.inputs[batch], task.targets[batch]) for batch in task.batches]
        return torch.stack(steps, dim=1), _accuracy(stack, task)


def side_by_side(work: Sequence[Callable[[], R]]) -> Iterator[R]:
    """What each piece of work gives, in order. With many pieces a thread, each thread of torch takes pieces of its own;
    else all threads work on one piece.

    Operations on a chunk are too short to be shared by threads: they would wait for each other at the end of each.
    """
    threads = torch.get_num_threads()
    if threads == 1 or len(work) < PIECES_A_THREAD * threads:
        yield from (piece() for piece in work)
        return
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(lambda piece: piece(), work)
    finally:
        torch.set_num_threads(threads)


def fitting_chunk(task: Task) -> int:
    """Networks whose activations of one layer stay in the cache from the product that makes them to the next."""
    return max(CHUNK_NUMBERS // (task.batch * task.width), 1)


def chunks(nets: Sequence[Net], size: int) -> Iterator[list[int]]:
    """Indices of networks that are trained together: of one activation, all plain or all residual, deepest first.

    Neighbours in the order of depth share a chunk, so that nearly all of it is at work in nearly all of its layers.
    """
    groups: dict[tuple[str, bool], list[int]] = {}
    for index, net in enumerate(nets):
        groups.setdefault((net.activation, (net.skip, net.scale) == (0, 1)), []).append(index)
    for group in groups.values():
        group.sort(key=lambda index: -nets[index].depth)
        yield from (group[start : start + size] for start in range(0, len(group), size))


def _accuracy(stack: Stack, task: Task) -> Tensor:
    right = [
        (forward(stack, x).logits.argmax(2) == y).sum(1)
        for x, y in zip(
            torch.split(task.inputs, task.batch), torch.split(task.targets, task.batch), strict=True
        )
    ]
    return torch.stack(right).sum(0).to(task.inputs.dtype) / len(task.targets)


@contextmanager
def flushing_denormals() -> Iterator[None]:
    """Numbers below the normal range count as zero in this thread; as before afterwards."""
    before = bool(torch.tensor(1e-310, dtype=torch.float64).mul(1.0) == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
