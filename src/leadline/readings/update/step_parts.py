"""A step in parts: how parameters are split, and which optimizers step each of them alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from leadline.joint_optimizer import members_of
from leadline.readings.update.step_hooks import has_parts_of_step

# Heuristic: with Adam, the copied state of one part is an eighth of the weights; each part costs one call of `step`.
MAX_PARTS = 16
# Heuristic: bytes; the copies of smaller parts are small compared with the records of a trace.
MIN_PART_BYTES = 2**20
# Classes of torch.optim whose step of a parameter depends only on its own gradient and state; old versions lack Muon.
SEPARABLE_OPTIMIZERS = (
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Muon", "NAdam", "RAdam", "RMSprop", "Rprop",
    "SGD",
)  # fmt: skip


def split_parameters(parameters: Sequence[Tensor]) -> list[slice]:
    """Return at most `MAX_PARTS` consecutive parts of about equal size; one if the parameters are small."""
    sizes = [each.numel() * each.element_size() for each in parameters]
    min_bytes = max(MIN_PART_BYTES, sum(sizes) / MAX_PARTS)
    edges, size = [0], 0
    for index, each in enumerate(sizes[:-1], start=1):
        size += each
        if size >= min_bytes:
            edges.append(index)
            size = 0
    return [slice(*pair) for pair in pairwise([*edges, len(sizes)])]


def steps_each_alone(optimizer: Optimizer, parameters: Sequence[Tensor]) -> bool:
    """Return whether a step of these parameters, some at a time, does the same as one step of all of them."""
    own = {id(each) for each in parameters}
    held = [each for group in optimizer.param_groups for each in group["params"]]
    has_others = any(each.grad is not None and id(each) not in own for each in held)
    return (
        not has_others
        and not has_parts_of_step(optimizer)
        and all(_is_separable(member) for member in members_of(optimizer))
    )


def _is_separable(member: Optimizer) -> bool:
    """Return whether it is one of these classes of torch itself, with its own `step` or as a scheduler wraps it."""
    has_own_step = "step" not in vars(member) or getattr(member.step, "_wrapped_by_lr_sched", False)
    return has_own_step and type(member) in {
        getattr(torch.optim, name, None) for name in SEPARABLE_OPTIMIZERS
    }


def states_of(optimizer: Optimizer, parameters: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Return what the optimizer holds for these parameters; nothing for those that it has not stepped yet."""
    members = members_of(optimizer)
    return [member.state[each] for member in members for each in parameters if each in member.state]
