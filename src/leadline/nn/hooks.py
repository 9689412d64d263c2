"""Forward hooks and rerouted calls that change a module but keep its class and parameter names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from leadline.errors import InputError
from leadline.nn.activations import ACTIVATIONS, identity


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
class LastAxis:
    """The module's output without its last axis of length 1 (`kind` is "squeeze"), or with one more ("unsqueeze")."""

    kind: str

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        return on_first(output, lambda y: y.squeeze(-1) if self.kind == "squeeze" else y.unsqueeze(-1))


@dataclass(frozen=True, slots=True)
class Affine:
    """The module's output times `factor` plus `offset`: outputs of unit size in the unit of the targets."""

    factor: float
    offset: float

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        return on_first(output, lambda y: y * self.factor + self.offset)


@dataclass(frozen=True, slots=True)
class LogSoftmaxed:
    """The logarithm of the softmax of the module's output along `dim`."""

    dim: int

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        return on_first(output, lambda y: y.log_softmax(self.dim))


@dataclass(frozen=True, slots=True)
class ShiftedOutput:
    """The module's output `steps` positions later along `axis`: position t holds what belonged to t + steps.

    Positions that have no such output get zeros, which no weight can change.
    """

    steps: int
    axis: int

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        return on_first(output, lambda y: shifted(y, self.steps, self.axis, 0.0))


@dataclass(frozen=True, slots=True)
class ShiftedLabels:
    """The module's argument `name`, class labels, `steps` positions earlier along `axis`; -100, which losses ignore, is
    put where there are none.
    """

    name: str
    steps: int
    axis: int

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return arguments, {**named, self.name: shifted(named[self.name], -self.steps, self.axis, -100)}


def shifted(values: Tensor, steps: int, axis: int, fill: float) -> Tensor:
    """A tensor whose index t along `axis` holds what was at t + steps, and `fill` where there was nothing."""
    length = values.size(axis)
    moved = values.roll(-steps, axis)
    place = torch.arange(length, device=values.device) + steps
    outside = ((place < 0) | (place >= length)).view(-1, *[1] * (values.dim() - 1 - axis))
    return moved.masked_fill(outside, fill)


@dataclass(frozen=True, slots=True)
class Normed:
    """The module's output through its own submodule `norm`."""

    norm: str

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        return on_first(output, module.get_submodule(self.norm))


@dataclass(frozen=True, slots=True)
class NormedInput:
    """For `register_forward_pre_hook(..., with_kwargs=True)`: the first tensor argument through the submodule `norm`.

    If the same tensor is passed several times (queries, keys and values of self-attention), all of them are normalized;
    other arguments, such as masks, are unchanged.
    """

    norm: str

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        tensors = [
            x for x in (*arguments, *named.values()) if isinstance(x, Tensor) and x.is_floating_point()
        ]
        if not tensors:
            raise InputError(
                expected="a module that is called with a floating-point tensor",
                got="a call without one",
                fix="put the norm into the module's own code",
            )
        normed = module.get_submodule(self.norm)(tensors[0])
        return (
            tuple(normed if x is tensors[0] else x for x in arguments),
            {name: normed if x is tensors[0] else x for name, x in named.items()},
        )


@dataclass(frozen=True, slots=True)
class Recentred:
    """The module's output minus its mean over the features of each position."""

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
    """The hook's number, or its parameter, shaped for channels-first images if it is a vector and `y` an image."""
    if not hook.gate:
        return hook.factor
    gate = module.get_parameter(hook.gate)
    return gate.view(-1, *[1] * (y.ndim - 2)) if gate.ndim == 1 and y.ndim >= 4 else gate


def on_first(output: Any, change: Any) -> Any:
    """The output with its tensor changed; for a tuple (attention, recurrence), with its first tensor changed."""
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


# Replacement of a torch function that a module's code calls, for activations that are not modules.

Forward = Callable[..., Any]


class ScaledCall:
    """A module's forward in which the result of one torch call is multiplied by `factor`.

    It is the call number `place` among those of the function named `calls`, counted from 0; calls in submodules do not
    count. Assign it to `module.forward`.
    """

    def __init__(self, module: nn.Module, calls: str, place: int, factor: float) -> None:
        self.module, self.calls, self.place, self.factor = module, calls, place, factor

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        mode = _ScaledCallMode(self.calls, self.place, self.factor)
        with _paused_inside(self.module, mode), mode:
            return type(self.module).forward(self.module, *arguments, **named)


class _ScaledCallMode(TorchFunctionMode):
    def __init__(self, calls: str, place: int, factor: float) -> None:
        super().__init__()
        self.calls, self.place, self.factor = calls, place, factor
        self.depth, self.seen = 0, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **kwargs or {})
        if self.depth or getattr(func, "__name__", "") != self.calls:
            return result
        self.seen += 1
        return result * self.factor if self.seen == self.place + 1 else result


class Rerouted:
    """A module's forward that replaces calls of the torch function named `calls` by `to`.

    `x.sigmoid()`, `torch.sigmoid(x)` and `F.sigmoid(x)` are all `sigmoid`; in-place forms count too. Calls in
    submodules stay. Assign it to `module.forward`.
    """

    def __init__(self, module: nn.Module, calls: str, to: str, forward: Forward) -> None:
        self.module, self.calls, self.to = module, calls, to
        self.inner = forward if isinstance(forward, Rerouted) else None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        forward = self.inner or type(self.module).forward.__get__(self.module)
        mode = _Rerouting(self.calls, ACTIVATIONS[self.to] if self.to != "identity" else identity)
        with _paused_inside(self.module, mode), mode:
            return forward(*arguments, **named)


class _Rerouting(TorchFunctionMode):
    def __init__(self, calls: str, to: Callable[..., Any]) -> None:
        super().__init__()
        self.calls, self.to, self.depth = calls, to, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.depth == 0 and getattr(func, "__name__", "").removesuffix("_") == self.calls:
            return self.to(args[0])
        return func(*args, **kwargs or {})


@contextmanager
def _paused_inside(module: nn.Module, mode: _Rerouting | _ScaledCallMode) -> Iterator[None]:
    def enter(child: nn.Module, arguments: Any) -> None:
        mode.depth += 1

    def leave(child: nn.Module, arguments: Any, output: Any) -> None:
        mode.depth -= 1

    inside = [child for child in module.modules() if child is not module]
    handles = [child.register_forward_pre_hook(enter) for child in inside]
    handles += [child.register_forward_hook(leave, always_call=True) for child in inside]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
