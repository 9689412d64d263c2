"""Another function in place of one that a module's own code calls: for activations that are no modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from leadline.nn.activations import ACTIVATIONS, identity

Forward = Callable[..., Any]


class Rerouted:
    """A module's forward in which calls of the torch function named `calls` are made to `to` instead.

    `x.sigmoid()`, `torch.sigmoid(x)` and `F.sigmoid(x)` are all `sigmoid`; in-place forms count too. Calls that
    submodules make are theirs, and stay. Put it in the place of `module.forward`.
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
def _paused_inside(module: nn.Module, mode: _Rerouting) -> Iterator[None]:
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
