"""Lending out an optimiser: whatever a step does to it is undone, bit for bit, and a fresh one stays fresh."""

from __future__ import annotations

import random
from collections import deque
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

from leadline.tracer.restore import atomic_contextmanager

Restore = Callable[[], object]

MAX_DEPTH = 12  # of containers inside containers, so that a structure that contains itself ends


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSnapshot:
    copies: list[Tensor]
    """Of the parameters, as they were."""
    rewind: Restore
    """Puts everything back; it may be called any number of times."""


@atomic_contextmanager
def preserve_optimizer(optimizer: Optimizer, parameters: Sequence[Tensor]) -> Iterator[OptimizerSnapshot]:
    """On exit the optimiser's state, groups and attributes and the `parameters` are what they were.

    Tensors are copied and written back in place, so that whoever holds one still holds the right one; state that a
    first step creates is removed again. Autograd does not see the writes: the user may hold a graph.
    """
    inner: list[Restore] = []
    _keep_object(optimizer, {id(parameter) for parameter in parameters}, inner, 0)
    copies = [parameter.detach().clone() for parameter in parameters]

    def rewind() -> None:
        for restore in inner:
            restore()
        for parameter, copy in zip(parameters, copies, strict=True):
            _write(parameter, copy)

    with ExitStack() as stack:
        for parameter in parameters:  # one by one: older torch takes no more
            stack.enter_context(_unsafe_preserve_version_counter(parameter))
        try:
            yield OptimizerSnapshot(copies=copies, rewind=rewind)
        finally:
            rewind()


@atomic_contextmanager
def suspend_step_hooks(optimizer: Optimizer) -> Iterator[None]:
    """Step hooks rest: they belong to real steps (loggers, moving averages), and this one will be undone.

    Those that are marked `part_of_step` (warm-up, clipping: `leadline.nn.schedules`) run: they decide what a step is.
    """
    resting: list[dict[Any, Any]] = [
        getattr(optimizer, "_optimizer_step_pre_hooks", {}),
        getattr(optimizer, "_optimizer_step_post_hooks", {}),
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    ]
    with ExitStack() as stack:
        for hooks in resting:
            stack.callback(_refill_dict, hooks, dict(hooks))
            for key in [key for key, hook in hooks.items() if not getattr(hook, "part_of_step", False)]:
                del hooks[key]
        yield


def _keep_object(owner: Any, known: set[int], found: list[Restore], depth: int) -> None:
    own = vars(owner)
    before = dict(own)
    found.append(partial(_refill_dict, own, before))
    for item in before.values():
        _keep(item, known, found, depth + 1)


def _keep(item: Any, known: set[int], found: list[Restore], depth: int) -> None:
    """Note how to put back what is inside `item`; each object once."""
    if id(item) in known or depth > MAX_DEPTH:
        return
    if isinstance(item, Tensor):
        known.add(id(item))
        found.append(partial(_write, item, item.detach().clone()))
    elif isinstance(item, dict | list | set | deque):
        known.add(id(item))
        before = item.copy()
        refill: Callable[[Any, Any], None] = _refill_dict if isinstance(item, dict) else _refill
        found.append(partial(refill, item, before))
        for each in before.values() if isinstance(before, dict) else before:
            _keep(each, known, found, depth + 1)
    elif isinstance(item, tuple):
        for each in item:
            _keep(each, known, found, depth + 1)
    elif isinstance(item, Optimizer):  # one that wraps another (lookahead and the like)
        known.add(id(item))
        _keep_object(item, known, found, depth + 1)
    elif type(item) is torch.Generator:
        found.append(partial(item.set_state, item.get_state()))
    elif isinstance(item, random.Random):
        found.append(partial(item.setstate, item.getstate()))


def _refill_dict(item: dict[Any, Any], before: dict[Any, Any]) -> None:
    """Compared by identity: keys of an optimiser's state are tensors, which must not be asked for equality."""
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
        tensor.copy_(copy)
