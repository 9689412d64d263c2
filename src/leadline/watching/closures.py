"""Closures that an optimiser is given: they make the gradients, and often the loss, while the step is under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Call = tuple[tuple[Any, ...], dict[str, Any]]


def with_closure(call: Call, ran: Callable[[Any], None]) -> Call | None:
    """The call with its closure wrapped: `ran` is told what its first run returned. None if there is no closure."""
    args, kwargs = call
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not callable(closure):
        return None
    wrapped = _telling(closure, ran)
    if "closure" in kwargs:
        return args, kwargs | {"closure": wrapped}
    return (args[0], wrapped, *args[2:]), kwargs


def _telling(closure: Callable[[], Any], ran: Callable[[Any], None]) -> Callable[[], Any]:
    untold = [True]

    def run() -> Any:
        found = closure()
        if untold:
            untold.clear()
            ran(found)
        return found

    return run
