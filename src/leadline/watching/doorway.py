"""Hooks that do not outlive their owner: a copied or saved model or optimiser carries an empty one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Doorway:
    """A hook that calls what it was made for, until it is shut. Copies and pickles of it are shut from the start.

    Models are copied (for averages of weights) and saved whole while they train. A bound method as hook would take the
    watch, its store and its history along, and the copy would report to them.
    """

    def __init__(self, call: Callable[..., Any] | None = None) -> None:
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return None if self._call is None else self._call(*args, **kwargs)

    def shut(self) -> None:
        self._call = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Doorway:
        return Doorway()

    def __copy__(self) -> Doorway:
        return Doorway()

    def __reduce__(self) -> tuple[type[Doorway], tuple[()]]:
        return Doorway, ()
