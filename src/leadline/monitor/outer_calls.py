"""The outermost calls of modules: found by wrapping `nn.Module.__call__` for a few steps, then followed by hooks.

The wrapper sees every module, so it would cost something for each layer of each pass. A module that was called from
outside of other modules gets two hooks of its own, and the search ends when it finds nothing new. It starts again
when an iteration over a loader begins, such as an evaluation. While only evaluations are of interest the hooks are
there from a call of `eval`, or the beginning of an iteration, to the next backward pass: a module with hooks is called
more slowly. Once something was compiled the wrapper stays instead:
hooks would have it compile again, and compiled layers do not come through the wrapper.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.utils.hooks import RemovableHandle

from leadline.monitor.hooks import DetachableHook, EagerHook, uncompiled
from leadline.tracer.live import is_in_backward, is_inside_vmap

# Heuristic: steps without a new module after which the search ends; a pattern of several optimizers repeats by then.
MIN_QUIET_STEPS = 8
# Heuristic: steps between two searches; a loop that makes a new iterator in each step is not searched all the time.
MIN_SEARCH_SPACING = 32
# Heuristic: share of all steps that lie between two searches, so that a long run has few of them.
MIN_SEARCH_SHARE = 0.25
# Heuristic: modules that get hooks; a loop that calls more of them from outside keeps the wrapper.
MAX_ROOTS = 64

Publish = Callable[..., None]


class _Inside(threading.local):
    """The outermost module that this thread runs, and how often if it calls itself."""

    def __init__(self) -> None:
        self.root: nn.Module | None = None
        self.depth = 0


class OuterCalls:
    """Publishes "before_call" and "after_call" for calls of modules that no other module makes."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._inside = _Inside()
        self._roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._is_hooked = True
        self._hooks: list[DetachableHook] = []
        self._handles: list[RemovableHandle] = []
        self._original: Callable[..., Any] | None = None
        """`nn.Module.__call__` while it is wrapped; None while it is not."""
        self._wrapper: Callable[..., Any] | None = None
        self._steps = self._last_found = self._last_search = 0
        self._only_evaluations = False
        """Whether only calls without gradients are of interest."""
        self.expects_evaluation = False
        """Whether the modules are hooked because an evaluation may have begun."""

    @property
    def is_searching(self) -> bool:
        """Whether `nn.Module.__call__` is wrapped, which ends only if steps are counted."""
        return self._original is not None

    def start(self) -> None:
        self._steps = self._last_found = self._last_search = 0
        self._wrap()

    def stop(self) -> None:
        self._unwrap()
        self._unhook()
        self._roots = weakref.WeakSet()

    def follow(self, *, only_evaluations: bool) -> None:
        """Publish all calls from now on, or only those of evaluations."""
        self._only_evaluations, self.expects_evaluation = only_evaluations, False
        if only_evaluations:
            self._unhook()
        else:
            self._hook()

    def expect_evaluation(self) -> None:
        """Follow calls until the next backward pass."""
        if self._only_evaluations and not self._is_hooked:
            self.expects_evaluation = True
            self._hook()

    def forget_evaluation(self) -> None:
        self.expects_evaluation = False
        if self._only_evaluations:
            self._unhook()

    def search(self) -> None:
        """Search again, for instance because an evaluation begins."""
        self.expect_evaluation()
        if self._steps - self._last_search >= max(MIN_SEARCH_SPACING, MIN_SEARCH_SHARE * self._steps):
            self._last_search = self._last_found = self._steps
            self._wrap()

    def add_steps(self, count: int) -> None:
        """Count steps of optimizers; the search ends when it has found nothing for some."""
        self._steps += count
        self._inside.root = None  # an interrupt in a call may have left it
        if self._original is None:
            if _has_compiled():
                self._wrap()
        elif self._steps - self._last_found >= MIN_QUIET_STEPS and not _has_compiled():
            self._unwrap()

    @uncompiled
    def add(self, module: nn.Module) -> None:
        """Hook a module that is called from outside of other modules."""
        if module in self._roots or len(self._roots) >= MAX_ROOTS or _has_compiled():
            return
        if getattr(module, "_compiled_call_impl", None) is not None or isinstance(
            module, torch.jit.ScriptModule
        ):
            return
        self._roots.add(module)
        if self._is_hooked:
            self._hook_root(module)

    def _hook(self) -> None:
        if self._is_hooked:
            return
        self._is_hooked = True
        self._inside.root, self._inside.depth = None, 0  # the hooks may have been removed during a call
        if _has_compiled():  # meanwhile; from now on the wrapper publishes their calls
            self._roots = weakref.WeakSet()
        for module in list(self._roots):
            self._hook_root(module)

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.disable()
        for handle in self._handles:
            handle.remove()
        self._hooks, self._handles, self._is_hooked = [], [], False

    def _hook_root(self, module: nn.Module) -> None:
        before, after = DetachableHook(self._enter_hook), DetachableHook(self._leave_hook)
        self._hooks += [before, after]
        self._handles += [
            module.register_forward_pre_hook(EagerHook(before), with_kwargs=True, prepend=True),
            module.register_forward_hook(EagerHook(after), with_kwargs=True, always_call=True),
        ]

    def _wrap(self) -> None:
        if self._original is not None:
            return
        original = vars(nn.Module)["__call__"]
        inside = self._inside

        @uncompiled
        @functools.wraps(original)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or inside.root is not None or self._original is None:
                return original(module, *args, **kwargs)
            return self._call_outermost(original, module, args, kwargs)

        self._original, self._wrapper = original, call
        _replace_call(original, call)

    def _unwrap(self) -> None:
        original, wrapper = self._original, self._wrapper
        self._original = self._wrapper = None
        if original is not None and wrapper is not None:
            _replace_call(wrapper, original)

    @uncompiled
    def _call_outermost(
        self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if module in self._roots or _is_part_of_another():
            return original(module, *args, **kwargs)  # its hooks publish it, or it repeats a pass in backward
        if len(self._roots) < MAX_ROOTS:
            self._last_found = self._steps
        self._inside.root = module
        is_published = not (self._only_evaluations and torch.is_grad_enabled())
        try:
            if is_published:
                self._publish("before_call", module, args, kwargs)
            output = original(module, *args, **kwargs)
        finally:
            self._inside.root = None
        if is_published:
            self._publish("after_call", module, args, kwargs, output)
        self.add(module)
        return output

    def _enter_hook(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inside = self._inside
        if self._only_evaluations and inside.root is None and torch.is_grad_enabled():
            return
        if inside.root is module:
            inside.depth += 1
        elif inside.root is None and not _is_part_of_another():
            inside.root, inside.depth = module, 1
            self._publish("before_call", module, args, kwargs)

    def _leave_hook(self, module: nn.Module, *call: Any) -> None:
        """Called with (args, kwargs, output); after an error in the module with less."""
        inside = self._inside
        if inside.root is not module:
            return
        inside.depth -= 1
        if inside.depth:
            return
        inside.root = None
        if len(call) == 3 and call[2] is not None:
            self._publish("after_call", module, *call)


def _is_part_of_another() -> bool:
    """True in a backward pass, which repeats a checkpointed forward pass, and in a transform of `torch.func`."""
    return is_in_backward() or is_inside_vmap()


def _has_compiled() -> bool:
    """True once something was compiled. Optimizers load the compiler without using it."""
    utilities: Any = sys.modules.get("torch._dynamo.utils")
    return utilities is not None and bool(utilities.counters.get("frames"))


def _replace_call(old: Callable[..., Any], new: Callable[..., Any]) -> None:
    """Set `nn.Module.__call__`, and what the compiler takes for the original.

    The compiler goes straight to `forward` if a module's `__call__` is the one it knows, and compiles neither version.
    """
    if vars(nn.Module)["__call__"] is not old:
        return  # somebody else has wrapped it since
    nn.Module.__call__ = new  # type: ignore[method-assign]
    for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
        module = sys.modules.get(name)
        if getattr(module, "unpatched_nn_module_call", None) is old:
            module.unpatched_nn_module_call = new  # type: ignore[union-attr]
