"""Saves an optimizer before trial steps and restores it bit for bit; a fresh optimizer stays fresh."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from leadline.joint_optimizer import members_of
from leadline.tracer.restore import atomic_contextmanager

Restore = Callable[[], object]

# Heuristic: deeper than any real optimizer nests containers; it bounds a structure that contains itself.
MAX_DEPTH = 12
# Where torch keeps the step hooks of an optimizer and those of all optimizers.
MEMBER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
GLOBAL_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSnapshot:
    """The state of an optimizer and its parameters before trial steps."""

    copies: list[Tensor]
    """Copies of the parameters."""
    rewind: Restore
    """Restores everything; it may be called any number of times."""


@atomic_contextmanager
def preserve_optimizer(optimizer: Optimizer, parameters: Sequence[Tensor]) -> Iterator[OptimizerSnapshot]:
    """Restore the optimizer's state, groups and attributes and the `parameters` on exit.

    Tensors are copied and written back in place, so that every reference to them stays valid; state that a first step
    creates is removed. Autograd does not see the writes, because the user may hold a graph.
    """
    restores: list[Restore] = []
    _save_attributes(optimizer, {id(parameter) for parameter in parameters}, restores, 0)
    copies = [parameter.detach().clone() for parameter in parameters]

    def rewind() -> None:
        for restore in restores:
            restore()
        for parameter, copy in zip(parameters, copies, strict=True):
            _write(parameter, copy)

    with ExitStack() as stack:
        for parameter in parameters:  # one by one: older versions of torch accept only a single tensor
            stack.enter_context(_unsafe_preserve_version_counter(parameter))
        try:
            yield OptimizerSnapshot(copies=copies, rewind=rewind)
        finally:
            rewind()


@atomic_contextmanager
def suspend_step_hooks(optimizer: Optimizer) -> Iterator[None]:
    """Disable step hooks (loggers, moving averages) during trial steps: they belong to real steps.

    Hooks with the attribute `part_of_step` (warm-up and clipping of `leadline.nn.schedules`) run, because they decide
    what a step is.
    """
    tables: list[tuple[Any, str]] = [
        (owner, name)
        for owner, names in (
            *((member, MEMBER_HOOKS) for member in members_of(optimizer)),
            (torch_optimizer, GLOBAL_HOOKS),
        )
        for name in names
        if hasattr(owner, name)
    ]
    with ExitStack() as stack:
        for owner, name in tables:
            hooks = getattr(owner, name)
            stack.callback(setattr, owner, name, hooks)
            part_of_step = {key: hook for key, hook in hooks.items() if getattr(hook, "part_of_step", False)}
            # Another table, instead of an emptied one: a hook that is running may have called this.
            setattr(owner, name, OrderedDict(part_of_step))
        yield


def _save_attributes(owner: Any, visited: set[int], restores: list[Restore], depth: int) -> None:
    attributes = vars(owner)
    before = dict(attributes)
    restores.append(partial(_refill_dict, attributes, before))
    for item in before.values():
        _save(item, visited, restores, depth + 1)


def _save(item: Any, visited: set[int], restores: list[Restore], depth: int) -> None:
    """Append to `restores` what restores the content of `item`; each object is saved once."""
    if id(item) in visited or depth > MAX_DEPTH:
        return
    if isinstance(item, Tensor):
        visited.add(id(item))
        restores.append(partial(_write, item, item.detach().clone()))
    elif isinstance(item, dict | list | set | deque):
        visited.add(id(item))
        before = item.copy()
        refill: Callable[[Any, Any], None] = _refill_dict if isinstance(item, dict) else _refill
        restores.append(partial(refill, item, before))
        for each in before.values() if isinstance(before, dict) else before:
            _save(each, visited, restores, depth + 1)
    elif isinstance(item, tuple):
        for each in item:
            _save(each, visited, restores, depth + 1)
    elif isinstance(item, Optimizer):  # an optimizer that wraps another, such as lookahead
        visited.add(id(item))
        _save_attributes(item, visited, restores, depth + 1)
    elif type(item) is torch.Generator:
        restores.append(partial(item.set_state, item.get_state()))
    elif isinstance(item, random.Random):
        restores.append(partial(item.setstate, item.getstate()))


def _refill_dict(item: dict[Any, Any], before: dict[Any, Any]) -> None:
    """Restore a dict; it is compared by identity, because the keys may be tensors, whose == is elementwise."""
    same = len(item) == len(before) and all(
        a is b and item[a] is before[b] for a, b in zip(item, before, strict=True)
    )
    if not same:
        item.clear()
        item.update(before)


def _refill(item: Any, before: Any) -> None:
    if len(item) != len(before) or any(a is not b for a, b in zip(item, before, strict=True)):
        item.clear()
        item.extend(before) if isinstance(item, list | deque) else item.update(before)


def _write(tensor: Tensor, copy: Tensor) -> None:
    if tensor.layout is not torch.strided:
        tensor.data = copy
        return
    with torch.no_grad(), _unsafe_preserve_version_counter(tensor):
        if tensor.shape != copy.shape:
            tensor.resize_(copy.shape)
        distinct = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
        tensor[distinct].copy_(copy[distinct])  # an expanded tensor holds each number once
