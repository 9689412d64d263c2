"""Signals do not interrupt Leadline halfway: state that it changed is restored whatever a signal handler raises.

Schedulers and timeouts install handlers that raise (SIGTERM, SIGALRM, Ctrl-C), and such an exception can appear between
any two bytecodes. While a `shielded` function runs, each of these handlers is wrapped. The wrapper calls the handler as
usual while the user's own code runs. In Leadline's own code it lets one exception through, and from then on holds
further signals back until everything is restored. So at most one exception can hit the code that restores, and two
things make that one harmless: each context manager of `atomic_contextmanager` is listed from before it changes anything
until it has restored everything, and the shielded function closes what is still in the list.

A wrapper that is left behind does nothing but call the user's handler: it acts only while the frame of the shielded
function is on the stack.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, _GeneratorContextManager, contextmanager, suppress
from functools import wraps
from types import CodeType, FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

from leadline.errors import LeadlineError

P = ParamSpec("P")
T = TypeVar("T")
Handler = Callable[[int, FrameType | None], Any]
_Signal = tuple[Handler, int, FrameType | None]

USER_CODE: set[CodeType] = set()
"""The functions through which Leadline calls the user's code; whatever they call may be interrupted."""
_SIGNALS = tuple(sorted(set(signal.Signals) & signal.valid_signals()))


def shielded(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function restore what it changed, whatever signal handlers raise while it runs."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        layer = _Layer(sys._getframe())
        # The outer exit does what an exception at the first bytecode of the inner one prevented.
        with layer, layer:
            layer.open()
            return function(*args, **kwargs)

    return run


def atomic_contextmanager(function: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
    """Like `contextlib.contextmanager`, but signal handlers do not run during entry and exit."""
    interruptible = contextmanager(function)

    @wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return _AtomicContext(interruptible(*args, **kwargs))

    return make


class Shield:
    """The state of one shielded call in one thread."""

    def __init__(self, frame: FrameType) -> None:
        self.frame: FrameType | None = frame
        """The frame of the shielded call; None once it is over."""
        self.contexts: list[_AtomicContext[Any]] = []
        """Atomic contexts that were entered and not yet left, outermost first."""
        self.is_restoring = False
        """While True, signals are held back."""
        self.raised: BaseException | None = None
        """What a handler raised in Leadline's own code."""
        self.raised_in_user_code: list[BaseException] = []
        """What handlers raised in the user's code, which may catch it."""
        self.undecided: deque[_Signal] = deque()
        """Signals that have come and are neither held back nor handled yet."""
        self.is_deciding = False
        self.handling: set[int] = set()
        """Signals whose handlers run in the user's code; as in POSIX, the same signal waits until that is over."""
        self._held_back: deque[_Signal] = deque()
        self._is_delivering = False
        self._handlers: dict[int, _HeldBackHandler] = {}

    def wrap_handlers(self) -> None:
        """Wrap the handlers that Python calls; only the main thread receives signals, and only it may do this."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            handler: Any = signal.getsignal(number)
            while isinstance(handler, _HeldBackHandler):  # left behind by a call that is over
                handler = handler.handler
            if callable(handler):
                self._handlers[number] = _HeldBackHandler(self, handler)
                signal.signal(number, self._handlers[number])

    def hand_back(self) -> None:
        """Install the user's handlers again, except where the user's code installed another one meanwhile.

        The first of them can raise before the last is installed: what it raised waits until then.
        """
        raised: BaseException | None = None
        while self._handlers:
            try:
                for number, wrapper in list(self._handlers.items()):
                    installed: object = signal.getsignal(number)
                    if installed is wrapper:
                        signal.signal(number, wrapper.handler)
                    self._handlers.pop(number, None)
            except BaseException as error:
                raised = raised or error
        if raised is not None:
            raise raised

    @property
    def must_wait(self) -> bool:
        """Whether a signal that comes now is held back."""
        return self.is_restoring or self._is_delivering

    def hold_back_undecided(self) -> None:
        while (pending := _take_first(self.undecided)) is not None:
            self._held_back.append(pending)

    def call_in_user_code(self) -> None:
        """Call the handlers of new signals as Python would; if one raises, the others wait."""
        for _ in range(len(self.undecided)):
            pending = _take_first(self.undecided)
            if pending is None:  # a handler of another signal took it
                return
            handler, number, frame = pending
            self.handling.add(number)
            try:
                handler(number, frame)
            except BaseException as error:
                self.raised_in_user_code.append(error)
                self.hold_back_undecided()
                raise
            finally:
                self.handling.discard(number)
        self.hold_back_undecided()

    def deliver(self) -> None:
        """Call the handlers of the signals that were held back.

        Those that come meanwhile wait for the next delivery: a timer that is faster than this would otherwise nest one
        delivery in another until the stack is full, or keep this one from ending.
        """
        if self._is_delivering:
            return
        self._is_delivering = True
        try:
            self.hold_back_undecided()
            for _ in range(len(self._held_back)):
                self.call(*self._held_back.popleft())
        finally:
            self._is_delivering = False

    def call(self, handler: Handler, number: int, frame: FrameType | None) -> None:
        """Call a handler; if it raises, further signals are held back until everything is restored."""
        self.is_restoring = True
        try:
            handler(number, frame)
        except BaseException as error:
            self.raised = error
            raise
        self.is_restoring = False

    def find_swallowed(self) -> BaseException | None:
        """Return what a handler raised and Leadline's own code caught; what the user's code caught is the user's."""
        escaped = (each for each in self.raised_in_user_code if _has_left_user_code(each))
        return self.raised or next(escaped, None)

    def close_contexts(self) -> None:
        """Leave the contexts whose own exit an exception prevented, innermost first, all of them."""
        while self.contexts:
            context = self.contexts.pop()
            try:
                context.abandon()
            finally:
                self.close_contexts()


def _take_first(signals: deque[_Signal]) -> _Signal | None:
    """The first of the signals, if there is one; in one step, because a handler may take it too."""
    try:
        return signals.popleft()
    except IndexError:
        return None


class _HeldBackHandler:
    """Stands in for a signal handler of the user while a shielded function runs."""

    def __init__(self, shield: Shield, handler: Handler) -> None:
        self.shield, self.handler = shield, handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Treat a signal according to the code that it interrupts.

        One that interrupts this decision, or its own handler, is treated afterwards: a timer that is faster than these
        would otherwise nest one in another until the stack is full.
        """
        shield = self.shield
        shield.undecided.append((self.handler, number, frame))
        if shield.is_deciding or number in shield.handling:
            return
        shield.is_deciding = True
        try:
            is_running, runs_user_code = self._find_place(frame)
            if is_running and not runs_user_code:
                shield.hold_back_undecided()
        finally:
            shield.is_deciding = False
        if not is_running:
            shield.hand_back()
        if runs_user_code or not is_running:
            shield.call_in_user_code()
        elif not shield.must_wait:
            shield.deliver()

    def _find_place(self, frame: FrameType | None) -> tuple[bool, bool]:
        """Whether the shielded call still runs, and whether it is running the user's code."""
        runs_user_code = False
        while frame is not None and frame is not self.shield.frame:
            runs_user_code = runs_user_code or frame.f_code in USER_CODE
            frame = frame.f_back
        return frame is not None, runs_user_code


def _has_left_user_code(error: BaseException) -> bool:
    """Whether the exception passed a function through which Leadline calls the user's code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in USER_CODE:
        trace = trace.tb_next
    return trace is not None


class _Layer:
    """Opens and closes a shield; every exit restores what is not restored yet."""

    def __init__(self, frame: FrameType) -> None:
        self._frame: FrameType | None = frame
        self.shield: Shield | None = None

    def __enter__(self) -> None:
        """Change nothing, because no exit is due if an exception comes before this returns."""

    def open(self) -> None:
        """Open the shield, or do nothing inside another one."""
        if self._frame is not None and current_shield() is None:
            self.shield = _CURRENT.shield = Shield(self._frame)
            self.shield.wrap_handlers()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shield = self.shield
        if shield is None:
            # A frame that holds this object would otherwise wait for the garbage collector.
            self._frame = None
            return
        shield.is_restoring = True
        self._close(shield)
        swallowed = shield.find_swallowed()
        if swallowed is not None and (error is None or isinstance(error, LeadlineError)):
            raise swallowed
        shield.deliver()

    def _close(self, shield: Shield) -> None:
        shield.is_restoring = True
        shield.close_contexts()
        shield.hand_back()
        if _CURRENT.shield is shield:
            _CURRENT.shield = None
        shield.frame = self._frame = None
        self.shield = None


class _Current(threading.local):
    shield: Shield | None = None


_CURRENT = _Current()


def current_shield() -> Shield | None:
    """The shield of this thread whose call is still running."""
    shield = _CURRENT.shield
    if shield is None:
        return None
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame is not shield.frame:
        frame = frame.f_back
    return shield if frame is not None else None


class _HoldingBack:
    """Holds signals back; without a shield, one of its own does so."""

    def __init__(self, shield: Shield | None) -> None:
        self._shield = shield
        self._own = Shield(sys._getframe()) if shield is None else None
        self._was_restoring = False

    def __enter__(self) -> None:
        shield = self._own or self._shield
        assert shield is not None  # there is one or the other
        if self._own is not None:
            self._own.frame = sys._getframe(1)
            self._own.wrap_handlers()
        self._was_restoring, shield.is_restoring = shield.is_restoring, True

    def __exit__(self, *_: object) -> None:
        shield = self._own or self._shield
        assert shield is not None
        if self._own is not None:
            self._own.hand_back()
            self._own.frame = None
        shield.is_restoring = self._was_restoring
        if not self._was_restoring:
            shield.deliver()


_GENERATOR_EXIT = _GeneratorContextManager.__exit__.__code__


def finish_generators(error: BaseException | None) -> None:
    """Finish other context managers whose exit the exception prevented, such as those in which torch changes a mode.

    Otherwise the garbage collector would finish them after everything is restored.
    """
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code is _GENERATOR_EXIT:
                with suppress(Exception):
                    trace.tb_frame.f_locals["self"].gen.close()
            trace = trace.tb_next
        error = error.__context__


class _AtomicContext(AbstractContextManager[T]):
    """A context manager of a generator that is entered and left as a whole."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._shield: Shield | None = None
        self._is_entered = False

    def __enter__(self) -> T:
        self._shield = current_shield()
        if self._shield is not None:
            if self._shield.raised_in_user_code and not self._shield.is_restoring:
                swallowed = self._shield.find_swallowed()
                if swallowed is not None:  # Leadline's own code caught it, and would go on for long
                    raise swallowed
            self._shield.contexts.append(self)
        try:
            with _HoldingBack(self._shield):
                value: T = self._inner.__enter__()
                self._is_entered = True
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return value

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        is_suppressed: bool | None = None
        try:
            with _HoldingBack(self._shield):
                finish_generators(error)
                is_suppressed = self._leave(kind, error, trace)
        except BaseException:
            self._leave(kind, error, trace)  # the exception came before signals were held back
            raise
        return is_suppressed

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Leave the generator, unless that is done."""
        if self._shield is not None and self in self._shield.contexts:
            self._shield.contexts.remove(self)
        if not self._is_entered:
            return None
        self._is_entered = False
        is_suppressed: bool | None = self._inner.__exit__(kind, error, trace)
        return is_suppressed

    def abandon(self) -> None:
        """Restore what this context changed, because an exception prevented its exit."""
        self._is_entered = False
        self._inner.gen.close()
