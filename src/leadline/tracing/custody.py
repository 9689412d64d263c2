"""Putting everything back: the model, its gradients, random number generators and torch's modes, bit for bit."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from leadline import stats
from leadline.tracing.attributes import snapshot_attributes
from leadline.tracing.census import Census
from leadline.tracing.shield import undivided


@undivided
def custody(lent: Sequence[Census]) -> Iterator[WriteGuard]:
    """Lend modules out (the model, and a loss that is one); whatever happens inside, on exit they are as they were.

    Buffers are copied up front (they are small). Parameters are copied only if the pass is about to write one: the
    guard that this yields must be shown every tensor before an op writes into it. Its `rewind` puts buffers,
    attributes and random generators back in between, so that a second pass starts where the first one did.
    """
    parameters = [named.item for census in lent for named in census.parameters.values()]
    modules = [named.item for census in lent for named in census.modules.values()]
    buffers = [named.item for census in lent for named in census.buffers.values()]
    guard = WriteGuard(parameters)
    with ExitStack() as stack:
        stack.enter_context(process_state_kept())
        stack.enter_context(set_aside(parameters))
        guard.rewinds = [
            partial(_restore_tensors, [(buffer, buffer.detach().clone()) for buffer in buffers]),
            *[snapshot_attributes(module) for module in modules],
            partial(restore_random, random_states()),
        ]
        stack.callback(guard.rewind)
        stack.callback(guard.restore)
        yield guard


@undivided
def process_state_kept() -> Iterator[None]:
    """Afterwards random number generators, the default dtype and the default device are as they were."""
    with ExitStack() as stack:
        stack.callback(_restore_defaults, torch.get_default_dtype(), torch.get_default_device())
        stack.callback(restore_random, random_states())
        yield


@undivided
def set_aside(tensors: Sequence[Tensor]) -> Iterator[None]:
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


class Guard(Protocol):
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
