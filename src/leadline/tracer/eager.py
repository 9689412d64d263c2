"""Settings of the whole process during a trace: compiled code runs uncompiled, the collector rests."""

from __future__ import annotations

import gc
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from leadline.tracer.restore import atomic_contextmanager

STACK_ROOM = 1.5  # measured: a module call takes three Python frames, and four while module calls are watched
HOOKS_WARNING = r"Using `torch.compile\(module\)` when there are global hooks"


class _Settings:
    """Traces in several threads share these: the first one in makes the settings, the last one out undoes them."""

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
        ):  # a trace makes many small objects and no cycles: each full collection would find nothing
            gc.disable()
            self._undo.callback(gc.enable)
        self._undo.callback(sys.setrecursionlimit, sys.getrecursionlimit())
        sys.setrecursionlimit(int(sys.getrecursionlimit() * STACK_ROOM))
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and importing dynamo takes a second
            self._undo.enter_context(torch.compiler.set_stance("force_eager"))
            self._undo.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", message=HOOKS_WARNING)


_SETTINGS = _Settings()


@contextmanager
def eager() -> Iterator[None]:
    """Run compiled code uncompiled: inside a compiled graph no single op could be seen.

    Watching module calls adds a frame to each, so a model that just fits Python's recursion limit gets more room.
    """
    with _SETTINGS.held():
        yield
