r"""Parameters of networks of different depth in one tensor a layer, and one step of SGD on all of them at once.

Networks are in order of falling depth, so that those that have layer $l$ are the first `counts[l]`: a layer is one
batched product over a prefix, and a network that has no more layers simply stays where it is until the read-out.

SGD is linear in the gradient, so the read-out's gradient is multiplied by each network's $-\eta$ once, and what comes
back through the layers is the step itself: `baddbmm` adds it to the weights where it is computed, and no gradient of a
weight is ever stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from leadline.lab.fleet.plan import Net, Task, draw
from leadline.lab.fleet.slopes import SLOPES, Slope


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
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
    slope: Slope


def stack_up(nets: Sequence[Net], task: Task) -> Stack:
    """The networks' own weights, stacked. They must come deepest first."""
    drawn = [draw(net, task) for net in nets]
    counts = [sum(net.depth > layer for net in nets) for layer in range(nets[0].depth)]

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=task.inputs.dtype)[:, None, None]

    return Stack(
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
        slope=SLOPES[nets[0].activation],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What the backward pass needs of the forward one: each layer's $z$ and $\\phi(z)$, and the read-out's."""

    before: list[Tensor]
    after: list[Tensor]
    ends: tuple[Tensor, Tensor]
    logits: Tensor


def forward(stack: Stack, x: Tensor) -> Pass:
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
    return Pass(
        before=before,
        after=after,
        ends=(last_z, last_y),
        logits=torch.baddbmm(stack.last_bias, last_y, stack.last),
    )


def _activated(stack: Stack, z: Tensor) -> Tensor:
    """A residual layer needs z once more, for its skip."""
    over = stack.slope.over if stack.plain else None
    return stack.slope.forward(z) if over is None else over(z)


def _added(stack: Stack, z: Tensor, branch: Tensor) -> Tensor:
    going = len(z)
    return branch.mul_(stack.scale[:going]).addcmul_(z, stack.skip[:going])


def step(stack: Stack, x: Tensor, targets: Tensor) -> Tensor:
    """One step of SGD on each network, in place; the losses before it."""
    found = forward(stack, x)
    log_p = F.log_softmax(found.logits, dim=2)
    picked = targets.expand(len(log_p), -1)[..., None]
    losses = -log_p.gather(2, picked).mean(dim=(1, 2))
    move = log_p.exp_().scatter_add_(2, picked, log_p.new_tensor(-1.0).expand(picked.shape))
    move.mul_(stack.rate / -len(x))
    _backward(stack, x, found, move)
    return losses


def _backward(stack: Stack, x: Tensor, found: Pass, move: Tensor) -> None:
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
