"""Functions and methods of PyTorch that are wrapped while somebody listens, and restored in between and afterwards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

Function = Callable[..., Any]


class Wrapped(ABC):
    """Something of PyTorch that is wrapped when it is made, and can be restored and wrapped again."""

    @abstractmethod
    def restore(self) -> None:
        """Put the original back."""

    @abstractmethod
    def apply(self) -> None:
        """Put the wrapper back in place of the original."""


class WrappedAttribute(Wrapped):
    """A function that a module or class looks up by name. Somebody else's later wrapper stays."""

    def __init__(self, owner: Any, name: str, wrap: Callable[[Function], Function]) -> None:
        self._owner, self._name = owner, name
        self._original = vars(owner)[name]
        self._wrapper = wrap(self._original)
        setattr(owner, name, self._wrapper)

    def restore(self) -> None:
        if vars(self._owner).get(self._name) is self._wrapper:
            setattr(self._owner, self._name, self._original)

    def apply(self) -> None:
        if vars(self._owner).get(self._name) is self._original:
            setattr(self._owner, self._name, self._wrapper)


class WrappedCell(Wrapped):
    """The function inside a decorator, in the decorator's closure."""

    def __init__(self, cell: Any, wrap: Callable[[Function], Function]) -> None:
        self._cell, self._original = cell, cell.cell_contents
        self._wrapper = wrap(self._original)
        self.apply()

    def restore(self) -> None:
        self._cell.cell_contents = self._original

    def apply(self) -> None:
        self._cell.cell_contents = self._wrapper


def wrap_decorated(function: Function, wrap: Callable[[Function], Function]) -> Iterator[Wrapped]:
    """Wrap the function that this decorated one calls; nothing if it is not decorated."""
    cells = getattr(function, "__closure__", None) or ()
    for cell in cells:
        if isinstance(cell.cell_contents, FunctionType):
            yield WrappedCell(cell, wrap)
            return


def wrap_methods(base: type, name: str, wrap: Callable[[Function], Function]) -> Iterator[Wrapped]:
    """Wrap the method in this class and in every subclass that overrides it."""
    for owner in (base, *all_subclasses(base)):
        yield from wrap_override(owner, name, wrap)


def wrap_override(owner: type, name: str, wrap: Callable[[Function], Function]) -> Iterator[Wrapped]:
    if isinstance(vars(owner).get(name), FunctionType):
        yield WrappedAttribute(owner, name, wrap)


def all_subclasses(base: type) -> Iterator[type]:
    found: set[type] = set()
    waiting = [base]
    each: type
    while waiting:
        for each in type.__subclasses__(waiting.pop()):
            if each not in found:
                found.add(each)
                waiting.append(each)
                yield each
