"""Changes of a module that leave its class and its parameters' names alone: forward hooks to register on it.

Each is a small callable without references to modules, so that deep copies and pickles of a hooked model work. A
parameter or norm that a hook uses is a member of the module it is registered on, under the name the hook was given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leadline.errors import InputError


@dataclass(frozen=True, slots=True)
class Scaled:
    """The module's output times `factor`, or times its parameter `gate`."""

    factor: float = 1.0
    gate: str = ""

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        return on_first(output, lambda y: y * factor_of(self, module, y))


@dataclass(frozen=True, slots=True)
class Skipped:
    """The module's input, plus its output times `factor` or times its parameter `gate`."""

    factor: float = 1.0
    gate: str = ""

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        x = arguments[0]
        return on_first(output, lambda y: x + y * factor_of(self, module, y))


@dataclass(frozen=True, slots=True)
class Normed:
    """The module's output through its own submodule `norm`."""

    norm: str

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        return on_first(output, module.get_submodule(self.norm))


@dataclass(frozen=True, slots=True)
class NormedInput:
    """For `register_forward_pre_hook(..., with_kwargs=True)`: the first tensor argument through the submodule `norm`.

    The same tensor is normalised wherever else it is passed (queries, keys and values of self-attention); others, such
    as masks, are left alone.
    """

    norm: str

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        given = [x for x in (*arguments, *named.values()) if isinstance(x, Tensor) and x.is_floating_point()]
        if not given:
            raise InputError(
                expected="a module that is called with a floating-point tensor",
                got="none",
                fix="put the norm into the module's own code",
            )
        normed = module.get_submodule(self.norm)(given[0])
        return (
            tuple(normed if x is given[0] else x for x in arguments),
            {name: normed if x is given[0] else x for name, x in named.items()},
        )


@dataclass(frozen=True, slots=True)
class Recentred:
    """The module's output less its mean over the features of each position."""

    dim: int = -1

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        return on_first(output, lambda y: y - y.mean(self.dim, keepdim=True))


@dataclass(frozen=True, slots=True)
class Standardised:
    """For `register_forward_pre_hook(..., with_kwargs=True)`: floating-point arguments as (x - mean) / deviation."""

    mean: float
    deviation: float

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return _map_arguments(arguments, named, lambda x: (x - self.mean) / self.deviation)


@dataclass(frozen=True, slots=True)
class Cast:
    """For `register_forward_pre_hook(..., with_kwargs=True)`: floating-point arguments in another dtype."""

    dtype: torch.dtype

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return _map_arguments(arguments, named, lambda x: x.to(self.dtype))


def factor_of(hook: Scaled | Skipped, module: nn.Module, y: Tensor) -> Tensor | float:
    """A number, or the parameter, shaped for channels-first images if it is a vector and `y` an image."""
    if not hook.gate:
        return hook.factor
    gate = module.get_parameter(hook.gate)
    return gate.view(-1, *[1] * (y.ndim - 2)) if gate.ndim == 1 and y.ndim >= 4 else gate


def on_first(output: Any, change: Any) -> Any:
    """The output with its tensor changed; of a tuple (attention, recurrence), the first."""
    if isinstance(output, Tensor):
        return change(output)
    if isinstance(output, tuple) and output and isinstance(output[0], Tensor) and type(output) is tuple:
        return (change(output[0]), *output[1:])
    raise InputError(
        expected="a module that returns a tensor, or a tuple that starts with one",
        got=f"a {type(output).__name__}",
        fix="change the module's own code instead",
    )


def _map_arguments(arguments: tuple[Any, ...], named: dict[str, Any], change: Any) -> Any:
    return tuple(_changed(x, change) for x in arguments), {k: _changed(x, change) for k, x in named.items()}


def _changed(x: Any, change: Any) -> Any:
    return change(x) if isinstance(x, Tensor) and x.is_floating_point() else x
