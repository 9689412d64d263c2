"""The values of a pass: which value each live tensor is, without keeping any tensor alive."""

from __future__ import annotations

import gc
import math
import types
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from leadline.records import SourceKind
from leadline.tracer.attention import RawAttention
from leadline.tracer.mixing import RawMixing
from leadline.tracer.stats import Number, RawStats, RawUnits

# Heuristic: containers nested more deeply in a batch or an output are data structures, not collections of tensors.
MAX_NESTING = 8
_LEAVES = (int, float, str, bytes, type(None), torch.dtype, torch.device)
_LEAF_TYPES = frozenset({*_LEAVES, bool})
_SEQUENCES = (tuple, list, set)


class ValueEntry:
    """A value as it is recorded; the fields are those of `leadline.records.Value` before they are fetched.

    Defaults are attributes of the class, because an entry sets few of its many fields.
    """

    op: int | None = None
    source: SourceKind | None = None
    name: str = ""
    forward: RawStats | None = None
    backward: RawStats | None = None
    units: RawUnits | None = None
    shared_mean: Number | None = None
    attended: RawAttention | None = None
    summed_targets: Number | None = None
    choices: Tensor | None = None
    mixing: RawMixing | None = None
    gradient_spread: Tensor | None = None
    unit_dim: int = -1
    unobserved: str = ""
    is_rearranged: bool = False
    """A layout op wrote it: its statistics are those of the value that the op rearranges."""
    awaits_gradient: bool = False
    """Its gradient is to be measured, but it was not part of a graph yet."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.shape = shape
        self.dtype = dtype


class ValueTable:
    """All values of a pass in order of appearance, and the live tensors among them.

    Tensors are recognized by their `id`. Python reuses the id of a dead tensor, so each id comes with a weak reference
    that must still point to the same tensor.
    """

    def __init__(self) -> None:
        self.entries: list[ValueEntry] = []
        self._live: dict[int, tuple[weakref.ref[Tensor], int]] = {}

    def find(self, tensor: Tensor) -> int | None:
        """Return the id of the value that this tensor is; None if it is not a value of the pass."""
        known = self._live.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def add(self, tensor: Tensor, entry: ValueEntry) -> int:
        """Add a new value and return its id. A tensor that was written in place becomes this value from now on."""
        self.entries.append(entry)
        self.alias(tensor, len(self.entries) - 1)
        return len(self.entries) - 1

    def forget_tensors(self) -> None:
        """Drop the weak references: torch does not swap a tensor (`load_state_dict`, `.double()`) that has one."""
        self._live.clear()

    def alias(self, tensor: Tensor, value: int) -> None:
        """Note that this tensor is that value too."""
        self._live[id(tensor)] = (weakref.ref(tensor), value)


def describe(tensor: Tensor) -> ValueEntry:
    """Return an entry with the shape and dtype of a tensor."""
    return ValueEntry(_shape(tensor), dtype_name(tensor.dtype))


def _shape(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape; a nested tensor has the mean length of its parts along its ragged axis, or no further axes."""
    if not tensor.is_nested:
        return tuple(tensor.shape)
    if tensor.layout is torch.strided:
        return (tensor.size(0),)
    values, axis = jagged_values(tensor), tensor._ragged_idx - 1  # type: ignore[attr-defined]
    mean_length = math.ceil(values.shape[axis] / max(tensor.size(0), 1))
    return tuple(size if type(size) is int else mean_length for size in tensor.shape)


def jagged_values(tensor: Tensor) -> Tensor:
    """Return the values of a jagged nested tensor, which every op supports; any other tensor as it is."""
    return tensor.values() if tensor.layout is torch.jagged else tensor


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without its prefix: "float32"."""
    return str(dtype).removeprefix("torch.")


def tensors_in(tree: Any) -> list[Tensor]:
    """Return the tensors in nested tuples, lists, dicts, dataclasses and packed sequences, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    tensors: list[Tensor] = []
    _gather(tree, tensors, 0)
    return tensors


def detached_copies(*roots: Any) -> dict[int, Any]:
    """Copies of the tensors with a graph that can be reached, such as results of earlier passes, by the id of each.

    `copy.deepcopy` refuses such a tensor wherever it is; as its memo, this dict makes it copy them without their graph.
    """
    copies: dict[int, Any] = {}
    visited: dict[int, Any] = {}
    todo = list(roots)
    while todo:
        item = todo.pop()
        if id(item) in visited or type(item) in _LEAF_TYPES or isinstance(item, _SHARED_BY_COPIES):
            continue
        visited[id(item)] = item
        if not isinstance(item, Tensor):
            todo += gc.get_referents(item)
        elif item.is_leaf:
            todo += [item.grad, *vars(item).values()]
        else:
            copies[id(item)] = item.detach().clone()
    return copies


_SHARED_BY_COPIES = (type, types.ModuleType, types.FunctionType, types.FrameType, types.CodeType)
"""Objects that `copy.deepcopy` does not copy; they lead to everything else."""


def _gather(tree: Any, tensors: list[Tensor], depth: int) -> None:
    for item in tree if type(tree) is tuple else _items(tree):
        if isinstance(item, Tensor):
            tensors.append(item)
        elif type(item) in _LEAF_TYPES:  # nearly all others, told apart without asking each base class
            continue
        elif depth < MAX_NESTING and not isinstance(item, _LEAVES):
            _gather(item, tensors, depth + 1)


def _items(tree: Any) -> Iterable[Any]:
    if isinstance(tree, _SEQUENCES):
        return tree
    if isinstance(tree, Mapping):
        return tree.values()
    if is_dataclass(tree) and not isinstance(tree, type):
        return [getattr(tree, field.name, None) for field in fields(tree)]
    return ()
