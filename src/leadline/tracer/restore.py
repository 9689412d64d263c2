"""Restore the model, its gradients, random number generators and torch settings after a pass."""

from __future__ import annotations

import random
import signal
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, wraps
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from leadline.tracer import stats
from leadline.tracer.names import ModelIndex

Restore = Callable[[], object]

_CONTAINERS = (dict, list, set, deque)
_PLAIN = frozenset({bool, int, float, str, bytes, type(None), tuple})
# Heuristic: containers nested more deeply are data, not the bookkeeping of a module.
MAX_NESTING = 4


def snapshot_attributes(module: nn.Module) -> Restore:
    """Return a function that restores the module's attributes as they are now.

    A module has a dozen dictionaries, most of them empty, and there are thousands of modules; empty dictionaries are
    not copied but emptied again.
    """
    own = vars(module)
    before = dict(own)
    changeable = [value for value in before.values() if type(value) not in _PLAIN]
    empty = [value for value in changeable if isinstance(value, _CONTAINERS) and not value]
    inner = [restore for value in changeable if (restore := _snapshot(value, 0)) is not None]

    def restore_all() -> None:
        if own.keys() != before.keys():
            for name in own.keys() - before.keys():
                del own[name]
        own.update(before)
        for value in empty:
            if value:
                value.clear()
        for restore in inner:
            restore()

    return restore_all


def _snapshot(value: Any, depth: int) -> Restore | None:
    """Return a function that restores the content of `value`; None if there is nothing to restore."""
    if isinstance(value, _CONTAINERS):
        return _snapshot_container(value, depth) if depth < MAX_NESTING and (value or depth) else None
    if type(value) is torch.Generator:
        return partial(value.set_state, value.get_state())
    if isinstance(value, random.Random):
        return partial(value.setstate, value.getstate())
    if type(value).__module__.startswith("numpy.random") and hasattr(value, "bit_generator"):
        return partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    return None


def _snapshot_container(value: Any, depth: int) -> Restore:
    before = value.copy()
    items = before.values() if isinstance(before, dict) else before
    inner = [restore for item in items if (restore := _snapshot(item, depth + 1)) is not None]

    def restore_all() -> None:
        if not _same(value, before):
            value.clear()
            value.extend(before) if isinstance(value, list | deque) else value.update(before)
        for restore in inner:
            restore()

    return restore_all


def _same(now: Any, before: Any) -> bool:
    """Whether both hold the same objects in the same places, compared by `is`, because they may be tensors."""
    if len(now) != len(before):
        return False
    if isinstance(now, dict):
        return all(a == b and now[a] is before[b] for a, b in zip(now, before, strict=True))
    if isinstance(now, set):  # without regard to order: refilling the set could change its order
        return {id(each) for each in now} == {id(each) for each in before}
    return all(a is b for a, b in zip(now, before, strict=True))


# Restoring must not be interrupted: Ctrl-C is deferred for the moments in which a model is partly changed or restored.
#
# An interrupt inside a `finally` would skip the rest of it, and could leave a model without its gradients. Only the
# one instruction with which Python calls `__exit__` stays unprotected.

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def defer_interrupt() -> Iterator[None]:
    """Handle a Ctrl-C (SIGINT) that comes inside afterwards, with the usual handler.

    Signals reach the main thread only, so in other threads there is nothing to do; the same holds if Python does not
    handle the signal.
    """
    handler = (
        signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    )
    if not callable(handler):
        yield
        return
    deferred: list[Any] = []
    signal.signal(signal.SIGINT, lambda *args: deferred.append(args))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if deferred:
            handler(*deferred[-1])


def atomic_contextmanager(function: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
    """Like `contextlib.contextmanager`, but entry and exit are not interrupted by Ctrl-C."""
    interruptible = contextmanager(function)

    @wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return _AtomicContext(interruptible(*args, **kwargs))

    return make


class _AtomicContext(AbstractContextManager[T]):
    def __init__(self, inner: AbstractContextManager[T]) -> None:
        self._inner = inner
        self._is_entered = False

    def __enter__(self) -> T:
        try:
            with defer_interrupt():
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
        has_begun = False
        try:
            with defer_interrupt():
                has_begun = True
                return self._inner.__exit__(kind, error, trace)
        except BaseException:
            # Ctrl-C came before it was deferred; without this, the garbage collector would restore things at any time
            if not has_begun:
                self._inner.__exit__(kind, error, trace)
            raise


# The model, its gradients, random number generators and torch's modes.


@atomic_contextmanager
def preserve_state(indexes: Sequence[ModelIndex]) -> Iterator[WriteGuard]:
    """Restore modules (the model, and a loss that is a module) on exit, bit for bit, also after an error.

    Buffers are copied at once, because they are small. Parameters are copied only before their first write: call the
    guard's `before_write` before an op writes to a tensor. The guard's `rewind` restores buffers, attributes and
    random number generators in between, so that a second pass starts in the same state as the first.
    """
    parameters = [named.item for index in indexes for named in index.parameters.values()]
    modules = [named.item for index in indexes for named in index.modules.values()]
    buffers = [named.item for index in indexes for named in index.buffers.values()]
    guard = WriteGuard(parameters)
    with ExitStack() as stack:
        stack.enter_context(preserve_process_state())
        stack.enter_context(hide_gradients(parameters))
        guard.rewinds = [
            partial(_restore_tensors, [(buffer, buffer.detach().clone()) for buffer in buffers]),
            *[snapshot_attributes(module) for module in modules],
            partial(restore_random, random_states()),
        ]
        stack.callback(guard.rewind)
        stack.callback(guard.restore)
        yield guard


class _PieceOfWork:
    """Lives as long as the frame in which the work is done."""

    __slots__ = ("__weakref__",)


class _OwnWork(threading.local):
    """The pieces of Leadline's own work that this thread is doing.

    They are held weakly: if an interrupt ends a piece before it can say so, it is gone with its frame.
    """

    def __init__(self) -> None:
        self.pieces: weakref.WeakSet[_PieceOfWork] = weakref.WeakSet()


_OWN_WORK = _OwnWork()


def is_own_work() -> bool:
    """True while this thread runs the user's model for Leadline and not for the user."""
    return len(_OWN_WORK.pieces) > 0


@atomic_contextmanager
def preserve_process_state() -> Iterator[None]:
    """Restore random number generators, the default dtype and the default device on exit.

    Everything inside is Leadline's own work, which a monitor of the user's loop does not count.
    """
    with ExitStack() as stack:
        piece = _PieceOfWork()
        stack.callback(_OWN_WORK.pieces.discard, piece)
        _OWN_WORK.pieces.add(piece)
        stack.callback(_restore_defaults, torch.get_default_dtype(), torch.get_default_device())
        stack.callback(restore_random, random_states())
        yield


@atomic_contextmanager
def hide_gradients(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Remove each `.grad` and the hooks that run once it is there (such as an optimizer step); restore them on exit.

    Hooks that the pass itself registers on a tensor are removed on exit.
    """
    saved = [(tensor, tensor.grad, {kind: _hooks(tensor, kind) for kind in _HOOKS}) for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.grad = None
            _set_hooks(tensor, "_post_accumulate_grad_hooks", {})
        yield
    finally:
        for tensor, grad, hooks in saved:
            tensor.grad = grad
            for kind, before in hooks.items():
                _set_hooks(tensor, kind, before)


_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def _hooks(tensor: Tensor, kind: str) -> dict[int, Any]:
    return dict(getattr(tensor, kind, None) or {})


def _set_hooks(tensor: Tensor, kind: str, hooks: dict[int, Any]) -> None:
    """Change the dictionary of the tensor in place, if it has one, because autograd reads that dictionary."""
    own = getattr(tensor, kind, None)
    if own is not None and own != hooks:
        own.clear()
        own.update(hooks)


class TensorGuard(Protocol):
    """Is notified of tensors to protect, and of tensors that an op is about to change."""

    def watch(self, tensor: Tensor) -> None: ...

    def before_write(self, targets: Sequence[Tensor]) -> None: ...


class WriteGuard:
    """Copies a parameter or input just before its first write, so that only models that write them pay for copies."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._watched: dict[int, list[Tensor]] = {}
        self._originals: list[tuple[Tensor, Tensor, bool]] = []
        self._saved: list[tuple[Tensor, Tensor]] = []
        self.rewinds: list[Callable[[], object]] = []
        for parameter in parameters:
            self.watch(parameter)

    def watch(self, tensor: Tensor) -> None:
        self._watched.setdefault(_storage(tensor), []).append(tensor)
        if tensor.is_leaf:
            self._originals.append((tensor, tensor.detach(), tensor.requires_grad))

    def before_write(self, targets: Sequence[Tensor]) -> None:
        """Copy watched tensors that an op is about to change; views and `.data` share the storage of the original."""
        for target in targets:
            for original in self._watched.pop(_storage(target), ()):
                self._saved.append((original, original.detach().clone()))

    def rewind(self) -> None:
        """Restore everything except the parameters and their gradients."""
        for restore in self.rewinds:
            restore()

    def restore(self) -> None:
        """Restore the values and `requires_grad` of all watched tensors."""
        for tensor, data, requires_grad in self._originals:
            if _storage(tensor) != _storage(data):  # the model assigned to `.data`
                tensor.data = data
            if tensor.requires_grad != requires_grad:
                tensor.requires_grad_(requires_grad)
        _restore_tensors(self._saved)


def _storage(tensor: Tensor) -> int:
    """Return the identity of a tensor's storage; of the tensor itself if it has no single storage (if it is sparse)."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _restore_tensors(saved: Sequence[tuple[Tensor, Tensor]]) -> None:
    for tensor, copy in saved:
        _restore_tensor(tensor, copy)


def _restore_tensor(tensor: Tensor, copy: Tensor) -> None:
    """Write back a changed tensor without autograd noticing: the user may hold a graph that saved this tensor."""
    if stats.unobservable(tensor):
        return
    if tensor.layout is not torch.strided:
        tensor.data = copy
        return
    is_equal, refusal = stats.attempt(torch.equal, tensor, copy)
    if tensor.shape != copy.shape or not (
        is_equal or refusal
    ):  # what refuses to be compared refuses writes too
        with torch.no_grad(), _unsafe_preserve_version_counter(tensor):
            if tensor.shape != copy.shape:
                tensor.resize_(copy.shape)
            tensor.copy_(copy)


def random_states() -> dict[str, Any]:
    """Return the states of the random number generators of torch, Python and NumPy (if it is imported)."""
    states: dict[str, Any] = {"torch": torch_random_state(), "python": random.getstate()}
    if torch.cuda.is_available():  # pragma: no cover  (the tests have no such device)
        states["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():  # pragma: no cover  (the tests have no such device)
        states["mps"] = torch.mps.get_rng_state()
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    return states


def torch_random_state() -> Tensor:
    """Return `torch.get_rng_state()`, read from a copy of the generator.

    torch locks a generator while it makes a tensor of its state. The garbage collector may run meanwhile, and with it
    code that needs the same generator, in this thread or in another: that is a deadlock. Copying the generator does
    not run the collector, and no other code needs the lock of the copy.
    """
    return torch.default_generator.clone_state().get_state()


def restore_random(states: dict[str, Any]) -> None:
    """Restore the states that `random_states` returned."""
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    if "cuda" in states:  # pragma: no cover  (the tests have no such device)
        torch.cuda.set_rng_state_all(states["cuda"])
    if "mps" in states:  # pragma: no cover  (the tests have no such device)
        torch.mps.set_rng_state(states["mps"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])


def _restore_defaults(dtype: torch.dtype, device: torch.device) -> None:
    if torch.get_default_dtype() != dtype:
        torch.set_default_dtype(dtype)
    if torch.get_default_device() != device:
        torch.set_default_device(device)
