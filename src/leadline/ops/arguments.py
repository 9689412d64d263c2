"""Reading the recorded arguments of an op, however it was spelled."""

from __future__ import annotations

from typing import Any

from leadline.records import Op

_SPELLED = {"NaN", "Infinity", "-Infinity"}  # numbers that JSON cannot write; see records.codec


def argument(op: Op, name: str, position: int, default: Any = None) -> Any:
    """The argument of that name, or at that position (0 is the tensor a method was called on).

    A tensor comes as "%7"; `value_of` reads that.
    """
    found = (
        op.kwargs[name] if name in op.kwargs else op.args[position] if position < len(op.args) else default
    )
    return float(found) if isinstance(found, str) and found in _SPELLED else found


def sequence(op: Op, name: str, position: int) -> tuple[Any, ...] | None:
    """An argument that may be given as a list or as the rest of the positional ones: `x.view(2, 3)`, `x.sum((0, 1))`.

    None if it was not given.
    """
    found = op.kwargs.get(name, op.args[position:])
    if not isinstance(found, list | tuple):
        return (found,)
    if len(found) == 1 and isinstance(found[0], list | tuple):
        found = found[0]
    return tuple(found) if found else None


def value_of(argument: Any) -> int | None:
    """The id of the value that a recorded argument is; None if it is no tensor."""
    if type(argument) is str and argument[:1] == "%" and argument[1:].isdigit():
        return int(argument[1:])
    return None
