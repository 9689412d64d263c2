"""Everything that can be reached from some objects, bit for bit, as a flat record; written apart from the product."""

from __future__ import annotations

import array
import collections
import functools
import io
import random
import types
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch import Tensor, nn

Contents = dict[str, object]
PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.Size,
    range,
    slice,
)
HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def contents(**roots: Any) -> Contents:
    """By path from one of the roots: values of numbers, bits of tensors and arrays, states of generators."""
    found: Contents = {}
    visited: dict[int, Any] = {}
    todo = list(roots.items())
    while todo:
        path, item = todo.pop()
        if isinstance(item, PLAIN):
            found[path] = (type(item).__name__, repr(item))
            continue
        if id(item) in visited:
            continue
        visited[id(item)] = item
        found[f"{path}: object"] = (type(item).__name__, id(item))
        found.update((f"{path}: {what}", value) for what, value in _own(item))
        todo += [(f"{path}{step}", part) for step, part in _parts(item)]
    return found


def settings() -> Contents:
    """Flags of the whole process that a forward pass can set."""
    return {
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "anomaly": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "matmul precision": _matmul_precision(),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "default dtype": torch.get_default_dtype(),
        "default device": str(torch.get_default_device()),
        "autocast": (torch.is_autocast_enabled("cpu"), str(torch.get_autocast_dtype("cpu"))),
        "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        "kernels": torch.backends.cuda.flash_sdp_enabled(),
        "backends": (torch.backends.cudnn.enabled, torch._C._get_mkldnn_enabled()),
        "precision": torch.backends.mkldnn.matmul.fp32_precision,
        "numpy errors": numpy.geterr(),
        "torch random": torch.get_rng_state().numpy().tobytes(),
        "python random": random.getstate(),
        "numpy random": repr(numpy.random.get_state()),
        "function modes": torch._C._len_torch_function_stack(),
    }


def _matmul_precision() -> str:
    """One for all backends; torch raises if they differ."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "by backend"


def _own(item: Any) -> Iterator[tuple[str, object]]:
    if isinstance(item, Tensor):
        yield from _tensor(item)
    elif isinstance(item, numpy.ndarray):
        numbers = b"" if item.dtype == object else item.tobytes()
        yield "array", (str(item.dtype), item.shape, item.flags.writeable, numbers)
    elif isinstance(item, torch.Generator):
        yield "state", item.get_state().numpy().tobytes()
    elif isinstance(item, random.Random):
        yield "state", item.getstate()
    elif isinstance(item, numpy.random.RandomState):
        yield "state", repr(item.get_state())
    elif isinstance(item, numpy.random.Generator):
        yield "state", repr(item.bit_generator.state)
    elif isinstance(item, io.StringIO):
        yield "text", (item.getvalue(), item.tell())
    elif isinstance(item, bytearray | array.array):
        yield "bytes", bytes(item)
    elif isinstance(item, set | frozenset):
        yield "members", sorted(map(_member, item))
    elif isinstance(item, list | tuple | dict | collections.deque):
        yield "length", len(item)
        if isinstance(item, dict):
            yield "keys", [_member(key) for key in item]


def _member(item: object) -> str:
    return repr(item) if isinstance(item, PLAIN) else f"{type(item).__name__} {id(item)}"


def _tensor(tensor: Tensor) -> Iterator[tuple[str, object]]:
    yield "autograd", (tensor.requires_grad, tensor.is_leaf, type(tensor.grad_fn).__name__)
    yield "hooks", [(name, list(getattr(tensor, name, None) or ())) for name in HOOKS]
    if tensor.is_nested:
        yield "bits", tensor.detach().values().clone().numpy().tobytes()
    elif tensor.is_quantized:
        yield "bits", tensor.detach().int_repr().clone().numpy().tobytes()
    elif tensor.layout is torch.strided:
        yield "layout", (str(tensor.dtype), tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
        if tensor.is_meta:
            return
        flat = (
            tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
        )  # numpy() pins its memory
        yield "bits", flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        yield "place", tensor.untyped_storage().data_ptr()
    else:
        yield "bits", tensor.detach().to_dense().numpy().tobytes()


def _parts(item: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(item, Tensor):
        if item.is_leaf:
            yield ".grad", item.grad
        return
    if isinstance(item, dict):
        yield from ((f"[{_member(key)}]", value) for key, value in item.items())
    elif isinstance(item, list | tuple | collections.deque):
        yield from ((f"[{index}]", value) for index, value in enumerate(item))
    elif isinstance(item, numpy.ndarray) and item.dtype == object:
        yield from ((f"[{index}]", value) for index, value in enumerate(item.flat))
    elif isinstance(item, types.FunctionType):
        yield ".__dict__", vars(item)
        yield ".__defaults__", item.__defaults__
        yield from ((f".<{index}>", cell.cell_contents) for index, cell in enumerate(item.__closure__ or ()))
        return
    elif isinstance(item, types.MethodType):
        yield ".__self__", item.__self__
        return
    elif isinstance(item, functools.partial):
        yield from ((".func", item.func), (".args", item.args), (".keywords", item.keywords))
    if isinstance(item, type | types.ModuleType | torch.jit.RecursiveScriptModule):
        if isinstance(item, torch.jit.RecursiveScriptModule):
            yield from ((f".{name}", each) for name, each in item.named_parameters())
        return
    if hasattr(item, "__dict__"):
        yield from ((f".{name}", value) for name, value in vars(item).items())
    for name in _slots(item):
        if hasattr(item, name):
            yield f".{name}", getattr(item, name)
    if isinstance(item, nn.Module):
        yield from (
            (f".class.{name}", each) for name, each in vars(type(item)).items() if isinstance(each, PLAIN)
        )


def _slots(item: Any) -> list[str]:
    slots = [getattr(each, "__slots__", ()) for each in type(item).__mro__]
    names = [name for each in slots for name in ((each,) if isinstance(each, str) else each)]
    return (
        [name for name in names if name not in ("__dict__", "__weakref__")]
        if not isinstance(item, PLAIN)
        else []
    )
