"""Snapshots of what modules keep on themselves: attributes, containers inside them, private random generators."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

Restore = Callable[[], object]

_CONTAINERS = (dict, list, set, deque)
_PLAIN = frozenset({bool, int, float, str, bytes, type(None), tuple})
MAX_DEPTH = 4  # of containers inside containers: deeper structures are data, not a module's bookkeeping


def snapshot_attributes(module: nn.Module) -> Restore:
    """Remember the module's attributes; the returned function puts them back.

    Most of a module's dozen dictionaries are empty, and there are thousands of modules: these are only emptied again.
    """
    own = vars(module)
    before = dict(own)
    changeable = [value for value in before.values() if type(value) not in _PLAIN]
    empty = [value for value in changeable if isinstance(value, _CONTAINERS) and not value]
    inner = [restore for value in changeable if (restore := _snapshot(value, 0)) is not None]

    def restore_all() -> None:
        if own.keys() != before.keys():
            for name in own.keys() - before.keys():
                del own[name]
        own.update(before)
        for value in empty:
            if value:
                value.clear()
        for restore in inner:
            restore()

    return restore_all


def _snapshot(value: Any, depth: int) -> Restore | None:
    """How to put back what is inside `value`; None if it holds nothing that can change unseen."""
    if isinstance(value, _CONTAINERS):
        return _snapshot_container(value, depth) if depth < MAX_DEPTH and (value or depth) else None
    if type(value) is torch.Generator:
        return partial(value.set_state, value.get_state())
    if isinstance(value, random.Random):
        return partial(value.setstate, value.getstate())
    if type(value).__module__.startswith("numpy.random") and hasattr(value, "bit_generator"):
        return partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    return None


def _snapshot_container(value: Any, depth: int) -> Restore:
    before = value.copy()
    items = before.values() if isinstance(before, dict) else before
    inner = [restore for item in items if (restore := _snapshot(item, depth + 1)) is not None]

    def restore_all() -> None:
        if not _same(value, before):
            value.clear()
            value.extend(before) if isinstance(value, list | deque) else value.update(before)
        for restore in inner:
            restore()

    return restore_all


def _same(now: Any, before: Any) -> bool:
    """The very same objects in the same places: tensors must not be asked whether they are equal."""
    if len(now) != len(before):
        return False
    if isinstance(now, dict):
        return all(a == b and now[a] is before[b] for a, b in zip(now, before, strict=True))
    if isinstance(
        now, set
    ):  # a copy of a set may be in another order: filling it again would change that of the original
        return {id(each) for each in now} == {id(each) for each in before}
    return all(a is b for a, b in zip(now, before, strict=True))
