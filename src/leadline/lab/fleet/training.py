"""Train many MLPs of different depths at once, with stacked parameters and one batched product per layer."""

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
    """The parameters of several networks, stacked: same activation, all plain or all residual, deepest first."""

    first: Tensor
    first_bias: Tensor
    square: tuple[Tensor, ...]
    """For each layer: (networks that have this layer, width, width)."""
    square_bias: tuple[Tensor, ...]
    last: Tensor
    last_bias: Tensor
    rate: Tensor
    skip: Tensor
    scale: Tensor
    plain: bool
    activation: FleetActivation


def stack_nets(nets: Sequence[Net], task: Task) -> StackedNets:
    """Draw and stack the weights of the networks, which must be sorted by depth, deepest first."""
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
        activation=ACTIVATIONS[nets[0].activation],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPass:
    """What the backward pass needs: $z$ and $\\phi(z)$ of each square layer and of the last layer."""

    before: list[Tensor]
    after: list[Tensor]
    ends: tuple[Tensor, Tensor]
    logits: Tensor


def forward(stack: StackedNets, x: Tensor) -> ForwardPass:
    """Map a batch (batch, features), the same for all networks, to logits (networks, batch, classes)."""
    z = torch.baddbmm(stack.first_bias, x.expand(len(stack.first), *x.shape), stack.first)
    before, after, ended = [], [], []
    for weight, bias in zip(stack.square, stack.square_bias, strict=True):
        active = len(weight)
        if active < len(z):
            ended.append(z[active:])
            z = z[:active]
        y = _activate(stack, z)
        before.append(z)
        after.append(y)
        branch = torch.baddbmm(bias, y, weight)
        z = branch if stack.plain else _add_skip(stack, z, branch)
    last_z = torch.cat([z, *reversed(ended)]) if ended else z
    last_y = _activate(stack, last_z)
    return ForwardPass(
        before=before,
        after=after,
        ends=(last_z, last_y),
        logits=torch.baddbmm(stack.last_bias, last_y, stack.last),
    )


def _activate(stack: StackedNets, z: Tensor) -> Tensor:
    """Apply the activation, in place if possible: a residual layer needs z again for its skip."""
    in_place = stack.activation.in_place if stack.plain else None
    return stack.activation.forward(z) if in_place is None else in_place(z)


def _add_skip(stack: StackedNets, z: Tensor, branch: Tensor) -> Tensor:
    active = len(z)
    return branch.mul_(stack.scale[:active]).addcmul_(z, stack.skip[:active])


def step(stack: StackedNets, x: Tensor, targets: Tensor) -> Tensor:
    """Do one step of SGD on each network, in place. Return the losses before the step."""
    passed = forward(stack, x)
    log_p = F.log_softmax(passed.logits, dim=2)
    picked = targets.expand(len(log_p), -1)[..., None]
    losses = -log_p.gather(2, picked).mean(dim=(1, 2))
    move = log_p.exp_().scatter_add_(2, picked, log_p.new_tensor(-1.0).expand(picked.shape))
    move.mul_(stack.rate / -len(x))
    _backward(stack, x, passed, move)
    return losses


def _backward(stack: StackedNets, x: Tensor, passed: ForwardPass, move: Tensor) -> None:
    """Propagate `move`, which is minus the rate times the gradient of the logits, and add it to every parameter."""
    last_z, last_y = passed.ends
    back = torch.bmm(move, stack.last.mT)
    _add_product(stack.last, stack.last_bias, last_y, move)
    move = stack.activation.backward(back, last_z, last_y)
    for layer in reversed(range(len(stack.square))):
        weight, bias = stack.square[layer], stack.square_bias[layer]
        z, y = passed.before[layer], passed.after[layer]
        here = move[: len(weight)]
        branch = here if stack.plain else here * stack.scale[: len(weight)]
        back = stack.activation.backward(torch.bmm(branch, weight.mT), z, y)
        _add_product(weight, bias, y, branch)
        if stack.plain and len(here) == len(move):  # every network has this layer
            move = back
        elif stack.plain:
            here.copy_(back)
        else:
            here.mul_(stack.skip[: len(weight)]).add_(back)
    _add_product(stack.first, stack.first_bias, x.expand(len(move), *x.shape), move)


def _add_product(weight: Tensor, bias: Tensor, y: Tensor, move: Tensor) -> None:
    weight.baddbmm_(y.mT, move)
    bias.add_(move.sum(1, keepdim=True))


# A fleet is split into chunks that fit the cache, and each chunk is trained through all its steps before the next.

R = TypeVar("R")

# Derived: with two threads, a thread that is idle at the end then costs at most an eighth of the time.
MIN_PIECES_PER_THREAD = 4
# Calibrated by benchmarks/fleet.py: the activations of one layer of a chunk, 256 kB in float32.
MAX_CHUNK_ELEMENTS = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetResult:
    """The results of the networks, in the order in which they were given."""

    losses: Tensor
    """(networks, steps): the loss on the batch of each step, before the step."""
    accuracy: Tensor
    """(networks,): the share of all samples that are classified correctly after the last step."""


def train_fleet(
    nets: Sequence[Net],
    task: Task,
    *,
    chunk: int | None = None,
    progress: Callable[[int, int, str], object] | None = None,
) -> FleetResult:
    """Train each network with plain SGD as if it were alone. `chunk` is the number of networks that run together.

    The default chunk fits the cache. The results equal those of `train_alone` except for the order of additions.
    Denormal numbers are flushed to zero: where gradients vanish they are a hundred times slower and change nothing.
    """
    losses = torch.empty(len(nets), len(task.batches), dtype=task.inputs.dtype)
    accuracy = torch.empty(len(nets), dtype=task.inputs.dtype)
    done = 0
    groups = list(split_into_chunks(nets, chunk or default_chunk_size(task)))
    work = [partial(_train_chunk, [nets[index] for index in mine], task) for mine in groups]
    for mine, (chunk_losses, chunk_accuracy) in zip(groups, run_on_threads(work), strict=True):
        losses[mine], accuracy[mine] = chunk_losses, chunk_accuracy
        done += len(mine)
        if progress is not None:
            progress(done, len(nets), "networks")
    return FleetResult(losses=losses, accuracy=accuracy)


@torch.no_grad()
def _train_chunk(nets: Sequence[Net], task: Task) -> tuple[Tensor, Tensor]:
    """Return the losses and accuracies of the networks of one chunk."""
    with flush_denormals():
        stack = stack_nets(nets, task)
        steps = [step(stack, task.inputs[batch], task.targets[batch]) for batch in task.batches]
        return torch.stack(steps, dim=1), _accuracy(stack, task)


def run_on_threads(work: Sequence[Callable[[], R]]) -> Iterator[R]:
    """Yield the result of each piece of work, in order. With many pieces, each torch thread runs its own pieces.

    With few pieces, all threads share each operation. The operations of a chunk are too short for that to pay off:
    the threads would wait for each other after each one.
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
    """Return how many networks to train together so that the activations of a layer stay in the cache."""
    return max(MAX_CHUNK_ELEMENTS // (task.batch * task.width), 1)


def split_into_chunks(nets: Sequence[Net], size: int) -> Iterator[list[int]]:
    """Yield the indices of networks to train together: same activation, all plain or all residual, deepest first.

    Networks of similar depth share a chunk, so that nearly all of them have nearly all of its layers.
    """
    groups: dict[tuple[str, bool], list[int]] = {}
    for index, net in enumerate(nets):
        groups.setdefault((net.activation, (net.skip, net.scale) == (0, 1)), []).append(index)
    for group in groups.values():
        group.sort(key=lambda index: -nets[index].depth)
        yield from (group[start : start + size] for start in range(0, len(group), size))


def _accuracy(stack: StackedNets, task: Task) -> Tensor:
    correct = [
        (forward(stack, x).logits.argmax(2) == y).sum(1)
        for x, y in zip(
            torch.split(task.inputs, task.batch), torch.split(task.targets, task.batch), strict=True
        )
    ]
    return torch.stack(correct).sum(0).to(task.inputs.dtype) / len(task.targets)


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Flush denormal numbers to zero in this thread, and restore the previous mode afterwards."""
    before = bool(torch.tensor(1e-310, dtype=torch.float64).mul(1.0) == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
