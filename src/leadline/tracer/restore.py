"""Restore the model, its gradients, random number generators and torch settings after a pass."""

from __future__ import annotations

import random
import signal
import sys
import threading
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
MAX_DEPTH = 4  # of containers inside containers: deeper structures are data, not a module's bookkeeping


def snapshot_attributes(module: nn.Module) -> Restore:
    """Remember the module's attributes; the returned function puts them back.

    Most of a module's dozen dictionaries are empty, and there are thousands of modules: these are only emptied again.
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
    """How to put back what is inside `value`; None if it holds nothing that can change unseen."""
    if isinstance(value, _CONTAINERS):
        return _snapshot_container(value, depth) if depth < MAX_DEPTH and (value or depth) else None
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
    """The very same objects in the same places: tensors must not be asked whether they are equal."""
    if len(now) != len(before):
        return False
    if isinstance(now, dict):
        return all(a == b and now[a] is before[b] for a, b in zip(now, before, strict=True))
    if isinstance(
        now, set
    ):  # a copy of a set may be in another order: filling it again would change that of the original
        return {id(each) for each in now} == {id(each) for each in before}
    return all(a is b for a, b in zip(now, before, strict=True))


# Putting things back is not interrupted: Ctrl-C waits for the few moments in which a model is half lent or half back.
#
# An interrupt inside a `finally` would leave the rest of it undone, and with it a model without its gradients, say.
# What remains open is the one instruction with which Python calls `__exit__`.

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def defer_interrupt() -> Iterator[None]:
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


def atomic_contextmanager(make: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
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
        begun = False
        try:
            with defer_interrupt():
                begun = True
                return self._inner.__exit__(kind, error, trace)
        except BaseException:
            # Ctrl-C before the shield was up: left open, the collector would put things back at any time
            if not begun:
                self._inner.__exit__(kind, error, trace)
            raise


# Putting everything back: the model, its gradients, random number generators and torch's modes, bit for bit.


@atomic_contextmanager
def preserve_state(lent: Sequence[ModelIndex]) -> Iterator[WriteGuard]:
    """Lend modules out (the model, and a loss that is one); whatever happens inside, on exit they are as they were.

    Buffers are copied up front (they are small). Parameters are copied only if the pass is about to write one: the
    guard that this yields must be shown every tensor before an op writes into it. Its `rewind` puts buffers,
    attributes and random generators back in between, so that a second pass starts where the first one did.
    """
    parameters = [named.item for model_index in lent for named in model_index.parameters.values()]
    modules = [named.item for model_index in lent for named in model_index.modules.values()]
    buffers = [named.item for model_index in lent for named in model_index.buffers.values()]
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


@atomic_contextmanager
def preserve_process_state() -> Iterator[None]:
    """Afterwards random number generators, the default dtype and the default device are as they were."""
    with ExitStack() as stack:
        stack.callback(_restore_defaults, torch.get_default_dtype(), torch.get_default_device())
        stack.callback(restore_random, random_states())
        yield


@atomic_contextmanager
def hide_gradients(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Take away each `.grad`, and with it the hooks that act once a gradient is there (an optimiser's step, say).

    Hooks that the pass itself hangs on a tensor are taken off again.
    """
    taken = [(tensor, tensor.grad, {kind: _hooks(tensor, kind) for kind in _HOOKS}) for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.grad = None
            _set_hooks(tensor, "_post_accumulate_grad_hooks", {})
        yield
    finally:
        for tensor, grad, hooks in taken:
            tensor.grad = grad
            for kind, before in hooks.items():
                _set_hooks(tensor, kind, before)


_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def _hooks(tensor: Tensor, kind: str) -> dict[int, Any]:
    return dict(getattr(tensor, kind, None) or {})


def _set_hooks(tensor: Tensor, kind: str, hooks: dict[int, Any]) -> None:
    """Change the dictionary that torch made, if it made one: it is the one that autograd looks into."""
    own = getattr(tensor, kind, None)
    if own is not None and own != hooks:
        own.clear()
        own.update(hooks)


class TensorGuard(Protocol):
    """Told of tensors to keep, and of those that an op is about to change."""

    def watch(self, tensor: Tensor) -> None: ...

    def before_write(self, targets: Sequence[Tensor]) -> None: ...


class WriteGuard:
    """Copies a parameter or input just before its first write, so that only models that write them pay for it."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._watched: dict[int, list[Tensor]] = {}
        self._found: list[tuple[Tensor, Tensor, bool]] = []
        self._saved: list[tuple[Tensor, Tensor]] = []
        self.rewinds: list[Callable[[], object]] = []
        for parameter in parameters:
            self.watch(parameter)

    def watch(self, tensor: Tensor) -> None:
        self._watched.setdefault(_storage(tensor), []).append(tensor)
        if tensor.is_leaf:
            self._found.append((tensor, tensor.detach(), tensor.requires_grad))

    def before_write(self, targets: Sequence[Tensor]) -> None:
        """Call with the tensors that an op is about to change; views and `.data` share the storage of the original."""
        for target in targets:
            for original in self._watched.pop(_storage(target), ()):
                self._saved.append((original, original.detach().clone()))

    def rewind(self) -> None:
        """All but the parameters and their gradients as it was when the custody began."""
        for restore in self.rewinds:
            restore()

    def restore(self) -> None:
        for tensor, data, requires_grad in self._found:
            if _storage(tensor) != _storage(data):  # the model assigned to `.data`
                tensor.data = data
            if tensor.requires_grad != requires_grad:
                tensor.requires_grad_(requires_grad)
        _restore_tensors(self._saved)


def _storage(tensor: Tensor) -> int:
    """Identity of the memory behind a tensor; its own identity where it has no single memory (sparse, say)."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _restore_tensors(saved: Sequence[tuple[Tensor, Tensor]]) -> None:
    for tensor, copy in saved:
        _restore_tensor(tensor, copy)


def _restore_tensor(tensor: Tensor, copy: Tensor) -> None:
    """Write back only what changed, and unseen by autograd: the user may hold a graph that saved this tensor."""
    if stats.unobservable(tensor):
        return
    if tensor.layout is not torch.strided:
        tensor.data = copy
    elif tensor.shape != copy.shape or not torch.equal(tensor, copy):
        with torch.no_grad(), _unsafe_preserve_version_counter(tensor):
            if tensor.shape != copy.shape:
                tensor.resize_(copy.shape)
            tensor.copy_(copy)


def random_states() -> dict[str, Any]:
    states: dict[str, Any] = {"torch": _torch_state(), "python": random.getstate()}
    if torch.cuda.is_available():  # pragma: no cover  (the tests have no such device)
        states["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():  # pragma: no cover  (the tests have no such device)
        states["mps"] = torch.mps.get_rng_state()
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    return states


def _torch_state() -> Tensor:
    """`torch.get_rng_state()`, read off a copy of the generator.

    torch locks a generator while it makes a tensor of its state. The collector may run in there, and with it code that
    asks for the same generator, in this thread or, where the interpreter changes hands, in another: it waits for ever.
    A copy is made without the collector, and nobody else asks for its lock.
    """
    return torch.default_generator.clone_state().get_state()


def restore_random(states: dict[str, Any]) -> None:
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
