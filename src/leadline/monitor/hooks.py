"""Hooks that do not outlive the watch: a copied or saved model or optimizer carries a disabled one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

from torch import nn
from torch._C._dynamo import eval_frame
from torch._C._dynamo.eval_frame import set_eval_frame
from torch.compiler import is_compiling
from torch.jit._script import RecursiveScriptModule

F = TypeVar("F", bound=Callable[..., Any])


def uncompiled(function: F) -> F:
    """Mark a function of ours that stands in for one of PyTorch, whose frames the compiler skips.

    It is called from compiled programs where a graph has ended. The compiler would compile it by itself there.
    """
    compiler: Any = (
        eval_frame  # this is what `torch._dynamo.eval_frame.skip_code` does, without loading the compiler
    )
    if hasattr(compiler, "skip_code"):  # torch 2.6
        compiler.skip_code(function.__code__)
    else:
        skip = compiler._FrameExecStrategy(compiler._FrameAction.SKIP, compiler._FrameAction.DEFAULT)
        compiler.set_code_exec_strategy(function.__code__, skip)
    return function


def takes_hooks(module: nn.Module) -> bool:
    """Return whether a module accepts forward hooks; one that `torch.jit.script` made refuses them."""
    return not isinstance(module, RecursiveScriptModule)


# What a hook is saved as: a method of the standard library that takes anything and returns None. A model or optimizer
# that was saved whole can be loaded where Leadline is not installed.
INERT = (getattr, (nullcontext(), "__exit__"))


class DetachableHook:
    """A hook that calls a function until it is disabled. Its copies and pickles are disabled from the start.

    Models are copied (for weight averages) and saved whole while they train. A bound method as a hook would copy the
    watch, its store and its history along, and the copied model would report to them.
    """

    def __init__(self, call: Callable[..., Any] | None = None) -> None:
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._call is None:
            return None
        frame_callback = set_eval_frame(None)
        try:
            return self._call(*args, **kwargs)
        finally:
            set_eval_frame(frame_callback)

    def disable(self) -> None:
        self._call = None

    def __deepcopy__(self, memo: dict[int, Any]) -> DetachableHook:
        return DetachableHook()

    def __copy__(self) -> DetachableHook:
        return DetachableHook()

    def __reduce__(self) -> tuple[Any, ...]:
        return INERT


class EagerHook:
    """A module hook that does nothing while the module is being compiled.

    If the model, or the function that calls it, is compiled after `leadline.watch`, its hooks are compiled too. This
    one compiles to nothing.
    """

    def __init__(self, hook: DetachableHook) -> None:
        self._hook = hook

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return None if is_compiling() else self._hook(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return INERT


def do_not_compile(kind: type[DetachableHook]) -> None:
    """Set the mark that `torch.compiler.disable` sets, without loading the compiler and at a tenth of the cost.

    A compiled `optimizer.step` calls the hook and compiles neither the hook nor what it calls.
    """
    kind.__call__._torchdynamo_disable = True  # type: ignore[attr-defined]


do_not_compile(DetachableHook)
