"""Putting everything back: the model, its gradients, random number generators and torch's modes, bit for bit."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from leadline import stats
from leadline.tracing.census import Census


@contextmanager
def custody(census: Census) -> Iterator[WriteGuard]:
    """Lend the model out; whatever happens inside, on exit it is as it was.

    Buffers are copied up front (they are small). Parameters are copied only if the pass is about to write one: the
    guard that this yields must be shown every tensor before an op writes into it.
    """
    guard = WriteGuard(census)
    with ExitStack() as stack:
        stack.callback(_restore_defaults, torch.get_default_dtype(), torch.get_default_device())
        stack.callback(_restore_random, _random_states())
        stack.enter_context(set_aside([named.item for named in census.parameters.values()]))
        for named in census.modules.values():
            stack.callback(_restore_attributes, named.item, _attributes(named.item))
        for buffer in (named.item for named in census.buffers.values()):
            stack.callback(_restore_tensor, buffer, buffer.detach().clone())
        stack.callback(guard.restore)
        yield guard


@contextmanager
def set_aside(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Take away each `.grad`, and with it the hooks that act once a gradient is there (an optimiser's step, say)."""
    taken = []
    for tensor in tensors:
        hooks = getattr(tensor, "_post_accumulate_grad_hooks", None) or {}
        taken.append((tensor, tensor.grad, hooks, dict(hooks)))
        hooks.clear()
        tensor.grad = None
    try:
        yield
    finally:
        for tensor, grad, hooks, before in taken:
            tensor.grad = grad
            hooks.update(before)


class WriteGuard:
    """Copies a parameter or input just before its first write, so that only models that write them pay for it."""

    def __init__(self, census: Census) -> None:
        self._watched: dict[int, Tensor] = {}
        self._saved: list[tuple[Tensor, Tensor]] = []
        for named in census.parameters.values():
            self.watch(named.item)
        self._flags = [(named.item, named.item.requires_grad) for named in census.parameters.values()]

    def watch(self, tensor: Tensor) -> None:
        self._watched.setdefault(_storage(tensor), tensor)

    def before_write(self, target: Tensor) -> None:
        """Call with each tensor that an op is about to change; views and `.data` share the storage of the original."""
        original = self._watched.pop(_storage(target), None)
        if original is not None:
            self._saved.append((original, original.detach().clone()))

    def restore(self) -> None:
        for original, copy in self._saved:
            _restore_tensor(original, copy)
        for parameter, requires_grad in self._flags:
            parameter.requires_grad_(requires_grad)


def _storage(tensor: Tensor) -> int:
    """Identity of the memory behind a tensor; its own identity where it has no single memory (sparse, say)."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _restore_tensor(tensor: Tensor, copy: Tensor) -> None:
    """Write back only what changed, and unseen by autograd: the user may hold a graph that saved this tensor."""
    if stats.unobservable(tensor) or torch.equal(tensor, copy):
        return
    with torch.no_grad(), _unsafe_preserve_version_counter(tensor):
        tensor.copy_(copy)


_CONTAINERS = (dict, list, set, deque)


def _attributes(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    """The module's attributes, and of those that are containers a copy of what they hold."""
    return {name: (value, _contents(value)) for name, value in vars(module).items()}


def _restore_attributes(module: nn.Module, before: dict[str, tuple[Any, Any]]) -> None:
    now = vars(module)
    for name in now.keys() - before.keys():
        del now[name]
    for name, (value, contents) in before.items():
        now[name] = value
        if contents is not None and not _same(value, contents):
            value.clear()
            value.extend(contents) if isinstance(value, list | deque) else value.update(contents)


def _contents(value: Any) -> Any:
    return value.copy() if isinstance(value, _CONTAINERS) else None


def _same(now: Any, before: Any) -> bool:
    """The very same objects in the same places: tensors must not be asked whether they are equal."""
    if len(now) != len(before):
        return False
    pairs = (
        zip(now.items(), before.items(), strict=True)
        if isinstance(now, dict)
        else zip(now, before, strict=True)
    )
    return all(a is b or (isinstance(a, tuple) and a[0] == b[0] and a[1] is b[1]) for a, b in pairs)


def _random_states() -> dict[str, Any]:
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        states["mps"] = torch.mps.get_rng_state()
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    return states


def _restore_random(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])
    if "mps" in states:
        torch.mps.set_rng_state(states["mps"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])


def _restore_defaults(dtype: torch.dtype, device: torch.device) -> None:
    if torch.get_default_dtype() != dtype:
        torch.set_default_dtype(dtype)
    if torch.get_default_device() != device:
        torch.set_default_device(device)
