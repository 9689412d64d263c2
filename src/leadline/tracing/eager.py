"""Running the user's code so that it can be seen: compiled parts uncompiled, deep nesting within Python's limit."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

FRAMES_A_MODULE = 3  # measured: a module call costs three Python frames without global hooks, four with them
HOOKS_WARNING = r"Using `torch.compile\(module\)` when there are global hooks"


class _Stance:
    """The compile stance belongs to the process, so traces in several threads share one: first in, last out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._held = ExitStack()

    def take(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._held.enter_context(torch.compiler.set_stance("force_eager"))
                self._held.enter_context(warnings.catch_warnings())
                warnings.filterwarnings("ignore", message=HOOKS_WARNING)

    def give_back(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._held.close()


_STANCE = _Stance()


@contextmanager
def eager() -> Iterator[None]:
    """Run compiled code uncompiled: inside a compiled graph no single op could be seen."""
    if "torch._dynamo" not in sys.modules:  # then nothing is compiled, and importing dynamo takes a second
        yield
        return
    _STANCE.take()
    try:
        yield
    finally:
        _STANCE.give_back()


@contextmanager
def room_for(nesting: int) -> Iterator[None]:
    """Watching module calls adds a frame to each; a model that just fits Python's recursion limit must still fit."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + FRAMES_A_MODULE * nesting + 100)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
