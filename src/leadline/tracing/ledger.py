"""Which value each live tensor is, without keeping any tensor alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from leadline.records import SourceKind
from leadline.stats import Reading, UnitReading

MAX_DEPTH = 8  # of nested containers in a batch or output; deeper ones are somebody's data structure, not tensors


@dataclass(slots=True)
class Entry:
    """A value under construction."""

    shape: tuple[int, ...]
    dtype: str
    op: int | None = None
    source: SourceKind | None = None
    name: str = ""
    forward: Reading | None = None
    backward: Reading | None = None
    units: UnitReading | None = None
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
        value = len(self.entries) - 1
        self._live[id(tensor)] = (weakref.ref(tensor), value)
        return value


def describe(tensor: Tensor) -> Entry:
    return Entry(shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))


def tensors_in(tree: Any, depth: int = 0) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists, dicts, dataclasses and packed sequences, in order."""
    if isinstance(tree, Tensor):
        yield tree
    elif depth >= MAX_DEPTH:
        return
    elif isinstance(tree, list | tuple | set):
        for item in tree:
            yield from tensors_in(item, depth + 1)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from tensors_in(item, depth + 1)
    elif hasattr(tree, "__dataclass_fields__") and not isinstance(tree, type):
        for name in tree.__dataclass_fields__:
            yield from tensors_in(getattr(tree, name, None), depth + 1)
    elif hasattr(tree, "data") and isinstance(getattr(tree, "data", None), dict):  # UserDict: HF's BatchEncoding
        yield from tensors_in(tree.data, depth + 1)
