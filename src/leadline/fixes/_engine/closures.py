"""Functions that hold on to a model (a lambda over its modules), bound to its copy: deepcopy shares functions."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

from leadline.tracer.names import ModelIndex

# Heuristic: deeper than containers in a closure are nested; it bounds a structure that contains itself.
MAX_DEPTH = 6

Memo = dict[int, Any]


class ReboundFunctions:
    """Copies of the functions in a model whose closures reach its modules or tensors.

    They are put into the memo of `copy.deepcopy` before the model is copied, with empty cells; `fill` fills the cells
    once the copies of the modules are known.
    """

    def __init__(self, model_index: ModelIndex, memo: Memo) -> None:
        self._memo = memo
        self._own = {*model_index.modules, *model_index.parameters, *model_index.buffers}
        self._rebound: list[tuple[FunctionType, FunctionType]] = []
        for named in model_index.modules.values():
            for function in _functions_in(vars(named.item).values()):
                self.add(function)

    def add(self, function: FunctionType) -> None:
        """Prepare a copy of the function if its closure reaches the model."""
        if id(function) in self._memo or not self._reaches(function, 0):
            return
        cells = tuple(CellType() for _ in function.__closure__ or ())
        rebound = FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, cells
        )
        rebound.__qualname__, rebound.__doc__ = function.__qualname__, function.__doc__
        rebound.__dict__.update(function.__dict__)
        self._memo[id(function)] = rebound
        self._rebound.append((function, rebound))
        for inner in _functions_in(_contents(function)):
            self.add(inner)

    def fill(self) -> None:
        """Let the copies refer to the copied modules; everything else in their closures stays shared."""
        for function, rebound in self._rebound:
            rebound.__defaults__ = self._copied(function.__defaults__)
            rebound.__kwdefaults__ = self._copied(function.__kwdefaults__)
            for cell, own_cell in zip(function.__closure__ or (), rebound.__closure__ or (), strict=True):
                for content in _content(cell):
                    own_cell.cell_contents = self._copied(content)

    def _copied(self, item: Any) -> Any:
        return copy.deepcopy(item, self._memo) if self._reaches(item, 0) else item

    def _reaches(self, item: Any, depth: int) -> bool:
        """Whether an item is, or refers to, a part of the model."""
        if id(item) in self._own:
            return True
        return depth < MAX_DEPTH and any(self._reaches(each, depth + 1) for each in _parts(item))


def _parts(item: Any) -> Iterable[Any]:
    """What an item refers to, where deepcopy would follow."""
    if isinstance(item, FunctionType):
        return _contents(item)
    if isinstance(item, MethodType):
        return (item.__self__,)
    if isinstance(item, partial):
        return (item.func, *item.args, *item.keywords.values())
    if isinstance(item, Mapping):
        return item.values()
    return item if isinstance(item, list | tuple | set) else ()


def _functions_in(items: Iterable[Any], depth: int = 0) -> Iterator[FunctionType]:
    for item in list(items):
        if isinstance(item, FunctionType):
            yield item
        elif depth < MAX_DEPTH:
            yield from _functions_in(_parts(item), depth + 1)


def _contents(function: FunctionType) -> list[Any]:
    enclosed = [content for cell in function.__closure__ or () for content in _content(cell)]
    return [*enclosed, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _content(cell: CellType) -> Iterator[Any]:
    """The content of a cell, if it has any: a variable may not be assigned yet."""
    try:
        yield cell.cell_contents
    except ValueError:
        return
