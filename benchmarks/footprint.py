"""Everything that a trace could leave behind, as a flat record, and the differences between two such records."""

from __future__ import annotations

import collections
import gc
import random
import sys
import warnings
from collections.abc import Iterator, Mapping

import numpy
import torch
from torch import Tensor, nn
from torch._dynamo import eval_frame
from torch.nn.modules import module as module_hooks
from torch.utils import _pytree as pytree

from leadline import Case

Footprint = dict[str, object]
HOOKS = (
    "_backward_hooks",
    "_post_accumulate_grad_hooks",
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
)  # hooks of tensors and optimizers; those of modules are among their attributes
CONTAINERS = (dict, list, set, collections.deque)
GENERATORS = (torch.Generator, random.Random, numpy.random.Generator)


def footprint(case: Case) -> Footprint:
    """Return everything that must be unchanged after a trace, bit for bit, by a descriptive name."""
    found: Footprint = dict(_process())
    for path, module in case.model.named_modules(remove_duplicate=False):
        found.update(_module(path or "model", module))
    for name, leaf in _leaves({"inputs": case.inputs, "targets": case.targets}):
        found.update(_tensor(name, leaf))
    if case.optimizer is not None:
        for name, leaf in _leaves({"optimizer": case.optimizer.state_dict()}):
            found[name] = _bits(leaf)
        found["optimizer hooks"] = _hooks(case.optimizer)
    return found


def differences(before: Footprint, after: Footprint) -> list[str]:
    """Return the names of all entries that differ."""
    missing = object()
    return [name for name in {**before, **after} if before.get(name, missing) != after.get(name, missing)]


def _process() -> Iterator[tuple[str, object]]:
    yield "torch random state", torch.get_rng_state().numpy().tobytes()
    yield "python random state", random.getstate()
    yield "numpy random state", repr(numpy.random.get_state())
    yield "default dtype", torch.get_default_dtype()
    yield "default device", torch.get_default_device()
    yield (
        "autocast",
        (
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
        ),
    )
    yield (
        "grad mode",
        (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()),
    )
    yield "function modes", torch._C._len_torch_function_stack()
    yield "dispatch modes", torch._C._len_torch_dispatch_stack()
    if hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"):  # not yet in torch 2.6
        yield "saved-tensor hooks", torch._C._autograd._top_saved_tensors_default_hooks(bool(1)) is None
    yield "compile stance", repr(eval_frame._stance)
    yield "attention fast path", torch.backends.mha.get_fastpath_enabled()
    yield "threads", torch.get_num_threads()
    yield "deterministic", torch.are_deterministic_algorithms_enabled()
    yield "recursion limit", sys.getrecursionlimit()
    yield "collector", (gc.isenabled(), len(gc.callbacks))
    yield "warning filters", list(warnings.filters)
    for name, hooks in vars(module_hooks).items():
        if name.startswith("_global_") and isinstance(hooks, dict):
            yield name, _identities(hooks)


def _module(path: str, module: nn.Module) -> Iterator[tuple[str, object]]:
    yield f"{path}: type", type(module)
    for name, value in vars(module).items():
        yield f"{path}.{name}: value", _identity(value)
        if isinstance(value, CONTAINERS):
            yield f"{path}.{name}: items", _identities(value)
        if isinstance(value, GENERATORS):
            yield f"{path}.{name}: random state", _random_state(value)
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None:
            yield from _tensor(f"{path}.{name}", tensor)


def _tensor(name: str, tensor: Tensor) -> Iterator[tuple[str, object]]:
    yield f"{name}: object", (id(tensor), type(tensor), tensor.requires_grad, tensor.is_leaf)
    yield f"{name}: bits", _bits(tensor)
    yield f"{name}: grad", (id(tensor.grad), _bits(tensor.grad)) if tensor.is_leaf else None
    yield f"{name}: hooks", _hooks(tensor)


def _bits(leaf: object) -> object:
    if not isinstance(leaf, Tensor):
        return leaf
    if leaf.layout is not torch.strided:
        return str(leaf.layout), leaf.to_dense().numpy().tobytes()
    if leaf.device.type == "meta":
        return str(leaf.dtype), tuple(leaf.shape)
    content = (
        leaf.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if leaf.numel() else b""
    )
    return str(leaf.dtype), tuple(leaf.shape), leaf.stride(), leaf.data_ptr(), content


def _hooks(owner: object) -> tuple[object, ...]:
    return tuple((name, _identities(getattr(owner, name, None) or {})) for name in HOOKS)


def _random_state(generator: object) -> object:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    return (
        generator.getstate() if isinstance(generator, random.Random) else repr(generator.bit_generator.state)
    )


def _identities(container: object) -> list[object]:
    """Return the objects in a container and its nested containers; numbers and names by value."""
    pairs = container.items() if isinstance(container, Mapping) else enumerate(container)
    return [
        (str(key), _identities(item) if isinstance(item, CONTAINERS) else _identity(item))
        for key, item in pairs
    ]


def _identity(item: object) -> object:
    return item if isinstance(item, bool | int | float | str) else id(item)


def _leaves(tree: object) -> Iterator[tuple[str, object]]:
    for path, leaf in pytree.tree_leaves_with_path(tree):
        if isinstance(leaf, Tensor):
            yield pytree.keystr(path), leaf
