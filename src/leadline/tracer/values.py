"""Which value each live tensor is, without keeping any tensor alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from leadline.records import SourceKind
from leadline.tracer.stats import Number, RawAttention, RawStats, RawUnits

MAX_DEPTH = (
    8  # of nested containers in a batch or output; deeper ones are somebody's data structure, not tensors
)
_LEAVES = (int, float, str, bytes, type(None), torch.dtype, torch.device)


@dataclass(slots=True)
class Entry:
    """A value under construction."""

    shape: tuple[int, ...]
    dtype: str
    op: int | None = None
    source: SourceKind | None = None
    name: str = ""
    forward: RawStats | None = None
    backward: RawStats | None = None
    units: RawUnits | None = None
    common: Number | None = None
    attended: RawAttention | None = None
    unit_dim: int = -1
    unobserved: str = ""
    moved: bool = False
    """Written by a layout op: its statistics are those of the value it rearranges."""
    awaited: bool = False
    """A gradient hook is in place."""


class Ledger:
    """All values of a pass in order of appearance, and the live tensors among them.

    Tensors are known by identity. A dead tensor's id is reused by Python, so each id comes with a weak reference
    that must still point to the very tensor asked about.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._live: dict[int, tuple[weakref.ref[Tensor], int]] = {}

    def find(self, tensor: Tensor) -> int | None:
        known = self._live.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def enter(self, tensor: Tensor, entry: Entry) -> int:
        """Note a new value; if the tensor was another value before (it was written in place), it is now this one."""
        self.entries.append(entry)
        self.alias(tensor, len(self.entries) - 1)
        return len(self.entries) - 1

    def alias(self, tensor: Tensor, value: int) -> None:
        """This tensor is that value, as another one may be."""
        self._live[id(tensor)] = (weakref.ref(tensor), value)


def describe(tensor: Tensor) -> Entry:
    irregular = tensor.is_nested and tensor.layout is torch.strided
    return Entry((tensor.size(0),) if irregular else tuple(tensor.shape), dtype_name(tensor.dtype))


@cache
def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors in nested tuples, lists, dicts, dataclasses and packed sequences, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    found: list[Tensor] = []
    _gather(tree, found, 0)
    return found


def _gather(tree: Any, found: list[Tensor], depth: int) -> None:
    for item in _items(tree):
        if isinstance(item, Tensor):
            found.append(item)
        elif depth < MAX_DEPTH and not isinstance(item, _LEAVES):
            _gather(item, found, depth + 1)


def _items(tree: Any) -> Iterable[Any]:
    if isinstance(tree, tuple | list | set):
        return tree
    if isinstance(tree, Mapping):
        return tree.values()
    if is_dataclass(tree) and not isinstance(tree, type):
        return [getattr(tree, field.name, None) for field in fields(tree)]
    return ()
