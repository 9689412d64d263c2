"""Settings of the whole process during a trace: compiled code runs uncompiled, the garbage collector is paused."""

from __future__ import annotations

import gc
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import torch

from leadline.tracer.shield import atomic_contextmanager

# Derived: a module call takes three Python frames, and four while the tracer follows module calls; rounded up.
RECURSION_LIMIT_FACTOR = 1.5
HOOKS_WARNING = r"Using `torch.compile\(module\)` when there are global hooks"


@atomic_contextmanager
def run_passes() -> Iterator[None]:
    """Run the model as a plain training loop would: uncompiled, with gradients, outside inference mode."""
    with run_eagerly(), torch.inference_mode(mode=False), torch.enable_grad():
        yield


@atomic_contextmanager
def run_eagerly() -> Iterator[None]:
    """Run compiled code uncompiled, because the ops inside a compiled graph cannot be recorded.

    Following module calls adds a frame to each of them, so the recursion limit is raised: a model that just fits
    within the limit can still be traced.
    """
    with _EAGER_SETTINGS.held():
        yield


@atomic_contextmanager
def pause_garbage_collection(*, cycles: bool = True) -> Iterator[None]:
    """Pause the garbage collector, and collect once at the end if the code inside makes reference `cycles`.

    A deep model makes hundreds of thousands of small objects, and nearly all of them live to the end. At 1000 layers,
    scanning them again and again would take a fifth of the time. Models are full of cycles; records have none.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if cycles:
            gc.collect()


@atomic_contextmanager
def allow_deep_calls() -> Iterator[None]:
    """Raise the recursion limit, because hooks add frames to every module call: what fits without them, fits."""
    with _DEEP_CALLS.held():
        yield


class _SharedSettings:
    """Settings shared by several users and threads: the first one makes them and the last one undoes them."""

    def __init__(self, make: Callable[[ExitStack], None]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._users = 0
        self._undo = ExitStack()

    @atomic_contextmanager
    def held(self) -> Iterator[None]:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._make(self._undo)
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._undo.close()


def _raise_recursion_limit(undo: ExitStack) -> None:
    undo.callback(sys.setrecursionlimit, sys.getrecursionlimit())
    sys.setrecursionlimit(int(sys.getrecursionlimit() * RECURSION_LIMIT_FACTOR))


def _run_uncompiled(undo: ExitStack) -> None:
    if gc.isenabled():  # a trace makes many small objects and no cycles, so a collection would free nothing
        gc.disable()
        undo.callback(gc.enable)
    _raise_recursion_limit(undo)
    if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled, and importing dynamo takes a second
        undo.enter_context(torch.compiler.set_stance("force_eager"))
        undo.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message=HOOKS_WARNING)


_DEEP_CALLS = _SharedSettings(_raise_recursion_limit)
_EAGER_SETTINGS = _SharedSettings(_run_uncompiled)
