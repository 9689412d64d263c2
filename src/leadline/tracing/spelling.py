"""The arguments of a torch call as JSON: tensors by the values they are, everything else as itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from leadline.records.codec import spell_float

LONGEST = 64  # items of a list; longer ones are data (a list of indices), not how an op was called
UNSPELLABLE = "?"


def spell(argument: Any, values: Mapping[int, int]) -> Any:
    """One argument as `leadline.records.Op.args` documents it; `values` is by identity of the tensor."""
    if isinstance(argument, Tensor):
        return f"%{values[id(argument)]}" if id(argument) in values else UNSPELLABLE
    if isinstance(argument, float):
        return spell_float(argument)
    if argument is None or isinstance(argument, bool | str):
        return argument
    if isinstance(argument, int | torch.SymInt):
        return int(argument)
    if isinstance(argument, list | tuple):
        return [spell(each, values) for each in argument] if len(argument) <= LONGEST else UNSPELLABLE
    if isinstance(argument, slice):
        return {"slice": [spell(each, values) for each in (argument.start, argument.stop, argument.step)]}
    if argument is Ellipsis:
        return "..."
    if isinstance(argument, torch.dtype):
        return str(argument).removeprefix("torch.")
    return UNSPELLABLE


def spelled_call(
    args: Sequence[Any], kwargs: Mapping[str, Any], values: Mapping[int, int]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments."""
    return tuple(spell(each, values) for each in args), {
        name: spell(each, values) for name, each in kwargs.items()
    }
