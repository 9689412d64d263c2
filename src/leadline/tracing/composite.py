"""Looking inside torch functions that are written in Python, such as `F.multi_head_attention_forward`."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any


def inside(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """A twin of a torch function written in Python, which runs its body at once; None if there is no such twin.

    Such a function begins with `if has_torch_function(...): return handle_torch_function(...)`. Calling it with a
    mode active would announce it to the mode once more, without end. The twin shares code, defaults and closure, but
    in its own globals that question is answered with no; the functions it calls still announce themselves.
    Methods of Tensor are left alone: their bodies call `super()`, which announces the method itself.
    """
    if not isinstance(function, FunctionType):
        return None
    asks = [name for name in function.__code__.co_names if name.startswith("has_torch_function")]
    if not asks:
        return None
    twin = FunctionType(
        function.__code__,
        {**function.__globals__, **dict.fromkeys(asks, _no)},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin


def _no(*_: Any) -> bool:
    return False
