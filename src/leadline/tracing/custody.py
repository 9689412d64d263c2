"""Putting everything back: the model, its gradients, random number generators and torch's modes, bit for bit."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

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
        stack.callback(_restore_gradients, _take_gradients(census))
        for named in census.modules.values():
            stack.callback(_restore_attributes, named.item, _attributes(named.item))
        for buffer in (named.item for named in census.buffers.values()):
            stack.callback(_restore_tensor, buffer, buffer.detach().clone())
        stack.callback(guard.restore)
        yield guard


class WriteGuard:
    """Copies a parameter just before its first write, so that only models that write parameters pay for it."""

    def __init__(self, census: Census) -> None:
        self._parameters = {
            _storage(named.item): named.item for named in census.parameters.values() if _storage(named.item)
        }
        self._flags = [(named.item, named.item.requires_grad) for named in census.parameters.values()]
        self._saved: list[tuple[Tensor, Tensor]] = []

    def before_write(self, target: Tensor) -> None:
        """Call with each tensor that an op is about to change; views and `.data` share their parameter's storage."""
        parameter = self._parameters.pop(_storage(target), None)
        if parameter is not None:
            self._saved.append((parameter, parameter.detach().clone()))

    def restore(self) -> None:
        for parameter, copy in self._saved:
            _restore_tensor(parameter, copy)
        for parameter, requires_grad in self._flags:
            parameter.requires_grad_(requires_grad)


@contextmanager
def eager() -> Iterator[None]:
    """Run compiled code uncompiled: inside a compiled graph no single op could be seen."""
    if "torch._dynamo" not in sys.modules:  # nothing can be compiled, and importing dynamo takes a second
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def _storage(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse, fake and other tensors without one storage
        return 0


def _restore_tensor(tensor: Tensor, copy: Tensor) -> None:
    with torch.no_grad():
        tensor.detach().copy_(copy)


def _attributes(module: nn.Module) -> dict[str, Any]:
    """The module's attributes, and one level down the dictionaries in which nn.Module keeps its parts."""
    return {name: dict(value) if type(value) is dict else value for name, value in vars(module).items()}


def _restore_attributes(module: nn.Module, before: dict[str, Any]) -> None:
    now = vars(module)
    for name in now.keys() - before.keys():
        del now[name]
    for name, value in before.items():
        if type(value) is dict and type(now.get(name)) is dict:
            if not _same_items(now[name], value):
                now[name].clear()
                now[name].update(value)
        else:
            now[name] = value


def _same_items(now: dict[str, Any], before: dict[str, Any]) -> bool:
    """The very same objects under the same keys: tensors must not be asked whether they are equal."""
    return list(now) == list(before) and all(now[key] is before[key] for key in before)


def _take_gradients(census: Census) -> list[tuple[nn.Parameter, Tensor | None, dict[int, Any]]]:
    """Set every `.grad` aside, and with it the hooks that act on a gradient that is there (an optimiser, say)."""
    taken = []
    for named in census.parameters.values():
        parameter = named.item
        hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
        taken.append((parameter, parameter.grad, dict(hooks)))
        hooks.clear()
        parameter.grad = None
    return taken


def _restore_gradients(taken: list[tuple[nn.Parameter, Tensor | None, dict[int, Any]]]) -> None:
    for parameter, grad, hooks in taken:
        parameter.grad = grad
        if hooks:
            parameter._post_accumulate_grad_hooks.update(hooks)


def _random_states() -> dict[str, Any]:
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
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
