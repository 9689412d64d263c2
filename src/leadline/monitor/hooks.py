"""Hooks that do not outlive their owner: a copied or saved model or optimiser carries an empty one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._C._dynamo.eval_frame import set_eval_frame
from torch.compiler import is_compiling


class Doorway:
    """A hook that calls what it was made for, until it is shut. Copies and pickles of it are shut from the start.

    Models are copied (for averages of weights) and saved whole while they train. A bound method as hook would take the
    watch, its store and its history along, and the copy would report to them.
    """

    def __init__(self, call: Callable[..., Any] | None = None) -> None:
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._call is None:
            return None
        compiling = set_eval_frame(None)
        try:
            return self._call(*args, **kwargs)
        finally:
            set_eval_frame(compiling)

    def shut(self) -> None:
        self._call = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Doorway:
        return Doorway()

    def __copy__(self) -> Doorway:
        return Doorway()

    def __reduce__(self) -> tuple[type[Doorway], tuple[()]]:
        return Doorway, ()


class Passage:
    """A hook of the model that is not there for the compiler: a pass that is being compiled goes by it untouched.

    Whoever compiles a model, or the function that calls it, after it was given to a watch compiles its hooks too. This
    one compiles to nothing.
    """

    def __init__(self, door: Doorway) -> None:
        self._door = door

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return None if is_compiling() else self._door(*args, **kwargs)


# What `torch.compiler.disable` marks a function with, but without loading the compiler and at a tenth of the cost: a
# compiled `optimizer.step` calls the hook, and neither compiles it nor what it calls.
Doorway.__call__._torchdynamo_disable = True  # type: ignore[attr-defined]
