"""Running a recorded pointwise op again, on quadrature nodes instead of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leadline.ops.arguments import value_of
from leadline.records import Op

_REFLECTED = ("__rpow__", "__rdiv__", "__rtruediv__", "__rfloordiv__", "__rmod__")
_SILENT = frozenset(
    {"inplace", "out", "dtype", "device", "memory_format", "non_blocking", "copy", "training"}
)
_NUMBERS = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}


@cache
def function_of(name: str) -> Callable[..., Tensor] | None:
    """The torch function of a canonical name."""
    for home in (F, torch, torch.special, Tensor):
        found: Callable[..., Tensor] | None = getattr(home, name, None)
        if found is not None:
            return found
    return None


def replay(op: Op, given: Mapping[int, Tensor | float]) -> Tensor:
    """The op on what is given for its tensors (by value id); its literals are those recorded."""
    function = function_of(op.name)
    if function is None:
        raise LookupError(op.name)
    args = [_literal(each, given) for each in op.args]
    if op.callable.endswith(_REFLECTED):
        args.reverse()
    kwargs = {key: _literal(each, given) for key, each in op.kwargs.items() if key not in _SILENT}
    made = function(*_tensors_first(args), **kwargs)
    return made.to(torch.float64)


def slopes(op: Op, given: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """The derivative of the op's result by each of its tensors, at the nodes."""
    with torch.enable_grad():
        leaves = {value: each.detach().clone().requires_grad_() for value, each in given.items()}
        made = replay(op, leaves)
        if not made.requires_grad:
            return {value: torch.zeros_like(each) for value, each in given.items()}
        found = torch.autograd.grad(made.sum(), list(leaves.values()), allow_unused=True)
    return {
        value: torch.zeros_like(each) if grad is None else torch.nan_to_num(grad)
        for (value, each), grad in zip(given.items(), found, strict=True)
    }


def _literal(recorded: Any, given: Mapping[int, Tensor | float]) -> Any:
    value = value_of(recorded)
    if value is not None:
        return given[value]
    return _NUMBERS.get(recorded, recorded) if isinstance(recorded, str) else recorded


def _tensors_first(args: list[Any]) -> list[Any]:
    """Numbers in the place of a tensor as tensors, which functions such as `pow` and `where` insist on."""
    if args and not isinstance(args[0], Tensor) and isinstance(args[0], float | int):
        return [torch.tensor(float(args[0]), dtype=torch.float64, device="cpu"), *args[1:]]
    return args
