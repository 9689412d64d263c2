"""Settings of the whole process during a trace: compiled code runs uncompiled, the garbage collector is paused."""

from __future__ import annotations

import gc
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from leadline.tracer.restore import atomic_contextmanager

# Derived: a module call takes three Python frames, and four while the tracer follows module calls; rounded up.
RECURSION_LIMIT_FACTOR = 1.5
HOOKS_WARNING = r"Using `torch.compile\(module\)` when there are global hooks"


@contextmanager
def run_eagerly() -> Iterator[None]:
    """Run compiled code uncompiled, because the ops inside a compiled graph cannot be recorded.

    Following module calls adds a frame to each of them, so the recursion limit is raised: a model that just fits
    within the limit can still be traced.
    """
    with _EAGER_SETTINGS.held():
        yield


@contextmanager
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


class _SharedSettings:
    """Settings shared by traces in several threads: the first trace makes them and the last one undoes them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._undo = ExitStack()

    @atomic_contextmanager
    def held(self) -> Iterator[None]:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._make()
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._undo.close()

    def _make(self) -> None:
        if (
            gc.isenabled()
        ):  # a trace makes many small objects and no cycles, so a collection would free nothing
            gc.disable()
            self._undo.callback(gc.enable)
        self._undo.callback(sys.setrecursionlimit, sys.getrecursionlimit())
        sys.setrecursionlimit(int(sys.getrecursionlimit() * RECURSION_LIMIT_FACTOR))
        if (
            "torch._dynamo" in sys.modules
        ):  # otherwise nothing is compiled, and importing dynamo takes a second
            self._undo.enter_context(torch.compiler.set_stance("force_eager"))
            self._undo.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", message=HOOKS_WARNING)


_EAGER_SETTINGS = _SharedSettings()
