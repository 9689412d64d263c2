"""Train many MLPs of different depths at once: stacked parameters, one batched product per layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from leadline.lab.fleet.plan import ACTIVATIONS, FleetActivation, Net, Task, draw_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedNets:
    """Networks of one activation, all plain or all residual, deepest first."""

    first: Tensor
    first_bias: Tensor
    square: tuple[Tensor, ...]
    """A layer: (networks that have it, width, width)."""
    square_bias: tuple[Tensor, ...]
    last: Tensor
    last_bias: Tensor
    rate: Tensor
    skip: Tensor
    scale: Tensor
    plain: bool
    slope: FleetActivation


def stack_nets(nets: Sequence[Net], task: Task) -> StackedNets:
    """The networks' own weights, stacked. They must come deepest first."""
    drawn = [draw_weights(net, task) for net in nets]
    counts = [sum(net.depth > layer for net in nets) for layer in range(nets[0].depth)]

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=task.inputs.dtype)[:, None, None]

    return StackedNets(
        first=torch.stack([each.first for each in drawn]),
        first_bias=torch.stack([each.first_bias for each in drawn])[:, None],
        square=tuple(torch.stack([w.square[i] for w in drawn[:n]]) for i, n in enumerate(counts)),
        square_bias=tuple(
            torch.stack([w.square_bias[i] for w in drawn[:n]])[:, None] for i, n in enumerate(counts)
        ),
        last=torch.stack([each.last for each in drawn]),
        last_bias=torch.stack([each.last_bias for each in drawn])[:, None],
        rate=column([net.rate for net in nets]),
        skip=column([net.skip for net in nets]),
        scale=column([net.scale for net in nets]),
        plain=all((net.skip, net.scale) == (0, 1) for net in nets),
        slope=ACTIVATIONS[nets[0].activation],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPass:
    """What the backward pass needs of the forward one: each layer's $z$ and $\\phi(z)$, and the read-out's."""

    before: list[Tensor]
    after: list[Tensor]
    ends: tuple[Tensor, Tensor]
    logits: Tensor


def forward(stack: StackedNets, x: Tensor) -> ForwardPass:
    """(batch, features), the same for all, to logits (networks, batch, classes)."""
    z = torch.baddbmm(stack.first_bias, x.expand(len(stack.first), *x.shape), stack.first)
    before, after, ended = [], [], []
    for weight, bias in zip(stack.square, stack.square_bias, strict=True):
        going = len(weight)
        if going < len(z):
            ended.append(z[going:])
            z = z[:going]
        y = _activated(stack, z)
        before.append(z)
        after.append(y)
        branch = torch.baddbmm(bias, y, weight)
        z = branch if stack.plain else _added(stack, z, branch)
    last_z = torch.cat([z, *reversed(ended)]) if ended else z
    last_y = _activated(stack, last_z)
    return ForwardPass(
        before=before,
        after=after,
        ends=(last_z, last_y),
        logits=torch.baddbmm(stack.last_bias, last_y, stack.last),
    )


def _activated(stack: StackedNets, z: Tensor) -> Tensor:
    """A residual layer needs z once more, for its skip."""
    over = stack.slope.over if stack.plain else None
    return stack.slope.forward(z) if over is None else over(z)


def _added(stack: StackedNets, z: Tensor, branch: Tensor) -> Tensor:
    going = len(z)
    return branch.mul_(stack.scale[:going]).addcmul_(z, stack.skip[:going])


def step(stack: StackedNets, x: Tensor, targets: Tensor) -> Tensor:
    """One step of SGD on each network, in place; the losses before it."""
    found = forward(stack, x)
    log_p = F.log_softmax(found.logits, dim=2)
    picked = targets.expand(len(log_p), -1)[..., None]
    losses = -log_p.gather(2, picked).mean(dim=(1, 2))
    move = log_p.exp_().scatter_add_(2, picked, log_p.new_tensor(-1.0).expand(picked.shape))
    move.mul_(stack.rate / -len(x))
    _backward(stack, x, found, move)
    return losses


def _backward(stack: StackedNets, x: Tensor, found: ForwardPass, move: Tensor) -> None:
    """`move` is minus the rate times the gradient of the logits; what it becomes is added to every parameter."""
    last_z, last_y = found.ends
    back = torch.bmm(move, stack.last.mT)
    _add_product(stack.last, stack.last_bias, last_y, move)
    move = stack.slope.backward(back, last_z, last_y)
    for layer in reversed(range(len(stack.square))):
        weight, bias = stack.square[layer], stack.square_bias[layer]
        z, y = found.before[layer], found.after[layer]
        here = move[: len(weight)]
        branch = here if stack.plain else here * stack.scale[: len(weight)]
        back = stack.slope.backward(torch.bmm(branch, weight.mT), z, y)
        _add_product(weight, bias, y, branch)
        if stack.plain and len(here) == len(move):  # nobody has dropped out: nothing to keep
            move = back
        elif stack.plain:
            here.copy_(back)
        else:
            here.mul_(stack.skip[: len(weight)]).add_(back)
    _add_product(stack.first, stack.first_bias, x.expand(len(move), *x.shape), move)


def _add_product(weight: Tensor, bias: Tensor, y: Tensor, move: Tensor) -> None:
    weight.baddbmm_(y.mT, move)
    bias.add_(move.sum(1, keepdim=True))


# A fleet cut into chunks that stay in the cache, each trained through all of its steps before the next one.

R = TypeVar("R")

MIN_PIECES_PER_THREAD = (
    4  # a thread left idle at the end then costs an eighth at most (derived, for two threads)
)
# Calibrated: docs/lab-notes/log.md, 2026-11-16: numbers in one layer of a chunk, 256 kB in float32.
MAX_CHUNK_ELEMENTS = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetResult:
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
) -> FleetResult:
    """Train each network with plain SGD as if it were alone. `chunk`: networks at once; None: what fits the cache.

    Gives what `train_alone` gives, but for the order of additions. Numbers below the normal range are taken as zero:
    where gradients vanish they would cost a hundred times what others do, and change nothing.
    """
    losses = torch.empty(len(nets), len(task.batches), dtype=task.inputs.dtype)
    accuracy = torch.empty(len(nets), dtype=task.inputs.dtype)
    done = 0
    groups = list(split_into_chunks(nets, chunk or default_chunk_size(task)))
    work = [partial(_train_chunk, [nets[index] for index in mine], task) for mine in groups]
    for mine, (seen, right) in zip(groups, run_on_threads(work), strict=True):
        losses[mine], accuracy[mine] = seen, right
        done += len(mine)
        if progress is not None:
            progress(done, len(nets), "networks")
    return FleetResult(losses=losses, accuracy=accuracy)


@torch.no_grad()
def _train_chunk(nets: Sequence[Net], task: Task) -> tuple[Tensor, Tensor]:
    """Losses and accuracies of networks that fit the cache together."""
    with flush_denormals():
        stack = stack_nets(nets, task)
        steps = [step(stack, task.inputs[batch], task.targets[batch]) for batch in task.batches]
        return torch.stack(steps, dim=1), _accuracy(stack, task)


def run_on_threads(work: Sequence[Callable[[], R]]) -> Iterator[R]:
    """What each piece of work gives, in order. With many pieces a thread, each thread of torch takes pieces of its own;
    else all threads work on one piece.

    Operations on a chunk are too short to be shared by threads: they would wait for each other at the end of each.
    """
    threads = torch.get_num_threads()
    if threads == 1 or len(work) < MIN_PIECES_PER_THREAD * threads:
        yield from (piece() for piece in work)
        return
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(lambda piece: piece(), work)
    finally:
        torch.set_num_threads(threads)


def default_chunk_size(task: Task) -> int:
    """Networks whose activations of one layer stay in the cache from the product that makes them to the next."""
    return max(MAX_CHUNK_ELEMENTS // (task.batch * task.width), 1)


def split_into_chunks(nets: Sequence[Net], size: int) -> Iterator[list[int]]:
    """Indices of networks that are trained together: of one activation, all plain or all residual, deepest first.

    Neighbours in the order of depth share a chunk, so that nearly all of it is at work in nearly all of its layers.
    """
    groups: dict[tuple[str, bool], list[int]] = {}
    for index, net in enumerate(nets):
        groups.setdefault((net.activation, (net.skip, net.scale) == (0, 1)), []).append(index)
    for group in groups.values():
        group.sort(key=lambda index: -nets[index].depth)
        yield from (group[start : start + size] for start in range(0, len(group), size))


def _accuracy(stack: StackedNets, task: Task) -> Tensor:
    right = [
        (forward(stack, x).logits.argmax(2) == y).sum(1)
        for x, y in zip(
            torch.split(task.inputs, task.batch), torch.split(task.targets, task.batch), strict=True
        )
    ]
    return torch.stack(right).sum(0).to(task.inputs.dtype) / len(task.targets)


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Numbers below the normal range count as zero in this thread; as before afterwards."""
    before = bool(torch.tensor(1e-310, dtype=torch.float64).mul(1.0) == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
