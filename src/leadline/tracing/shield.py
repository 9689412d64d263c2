"""Putting things back is not interrupted: Ctrl-C waits for the few moments in which a model is half lent or half back.

An interrupt inside a `finally` would leave the rest of it undone, and with it a model without its gradients, say.
What remains open is the one instruction with which Python calls `__exit__`.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C (SIGINT) that comes inside is answered afterwards, by whoever would have been asked.

    Signals reach the main thread only, so elsewhere there is nothing to do; nor where Python does not handle them.
    """
    usual = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(usual):
        yield
        return
    waiting: list[Any] = []
    signal.signal(signal.SIGINT, lambda *given: waiting.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if waiting:
            usual(*waiting[-1])


def undivided(make: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
    """As `contextlib.contextmanager`; what it does on entry, and what on exit, is done as a whole."""
    divided = contextmanager(make)

    @wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return _Undivided(divided(*args, **kwargs))

    return made


class _Undivided(AbstractContextManager[T]):
    def __init__(self, inner: AbstractContextManager[T]) -> None:
        self._inner = inner
        self._is_entered = False

    def __enter__(self) -> T:
        try:
            with uninterrupted():
                value = self._inner.__enter__()
                self._is_entered = True
        except BaseException:
            if self._is_entered:
                self.__exit__(*sys.exc_info())
            raise
        return value

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        begun = False
        try:
            with uninterrupted():
                begun = True
                return self._inner.__exit__(kind, error, trace)
        except BaseException:
            # Ctrl-C before the shield was up: left open, the collector would put things back at any time
            if not begun:
                self._inner.__exit__(kind, error, trace)
            raise
