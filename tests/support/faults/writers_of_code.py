"""More programs for `writers.PROGRAMS`: their state is in classes, files, raw memory or unusual tensors."""

from __future__ import annotations

import array
import contextvars
import ctypes
import enum
import functools
import mmap
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor

import tests.support.faults.counters
from leadline import Case
from tests.support.faults import counters
from tests.support.faults.writers import Net, Program, case_of, habit, program


class Reader:
    """Reads something each time it is looked at."""

    def __init__(self, read: Callable[[], object]) -> None:
        object.__setattr__(self, "_read", read)

    __slots__ = ("_read",)

    @property
    def __dict__(self) -> dict[str, Any]:
        return {"value": repr(self._read())}


# Classes and files.


class Scaled(torch.autograd.Function):
    """A function whose class counts its calls and whose backward pass changes its scale."""

    calls = 0
    scale = torch.ones(())

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        Scaled.calls += 1
        return x * Scaled.scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        Scaled.scale.mul_(0.99)
        return gradient * Scaled.scale


class UsesScaled(Net):
    def forward(self, x: Tensor) -> Tensor:
        return Scaled.apply(super().forward(x))


@program("an autograd function with state in its class")
def _autograd_class() -> Program:
    state = Reader(lambda: (Scaled.calls, Scaled.scale.item()))
    return Program(case=case_of(UsesScaled()), others={"class": state})


class SetsNewVariable(Net):
    def forward(self, x: Tensor) -> Tensor:
        global LATEST
        LATEST = x
        return super().forward(x)


@program("a variable of the file that did not exist")
def _new_variable() -> Program:
    globals().pop("LATEST", None)
    return Program(case=case_of(SetsNewVariable()), others={"file": Reader(lambda: "LATEST" in globals())})


@program("variables of a file in a package")
def _nested_file() -> Program:
    def note(model: Any, x: Tensor) -> None:
        tests.support.faults.counters.calls += 1
        tests.support.faults.counters.seen.add_(1)

    state = Reader(lambda: (counters.calls, counters.seen))
    return Program(case=case_of(Net(note)), others={"file": state})


@program("a file that the model holds")
def _held_file() -> Program:
    def note(model: Any, x: Tensor) -> None:
        model.file.by_name["calls"] = model.file.by_name.get("calls", 0) + 1

    counters.by_name.clear()
    return Program(case=case_of(Net(note, file=counters)), others={"names": counters.by_name})


CALLS: contextvars.ContextVar[int] = contextvars.ContextVar("CALLS", default=0)


@program("a context variable")
def _context_variable() -> Program:
    model = Net(lambda model, x: CALLS.set(CALLS.get() + 1))
    return Program(case=case_of(model), others={"variable": Reader(CALLS.get)})


class Owner:
    """Something that the model refers to and does not own."""

    def __init__(self) -> None:
        self.seen = torch.zeros(2)


@program("an object behind a weak reference")
def _weak_reference() -> Program:
    owner = Owner()
    model = Net(lambda model, x: model.owner().seen.add_(1), owner=weakref.ref(owner))
    return Program(case=case_of(model), others={"owner": owner})


# Raw memory.


@program("a memory map")
def _memory_map() -> Program:
    memory = mmap.mmap(-1, 64)

    def note(model: Any, x: Tensor) -> None:
        model.memory[3] = (model.memory[3] + 1) % 256

    return Program(case=case_of(Net(note, memory=memory)), others={"bytes": Reader(lambda: memory[:])})


class Counts(ctypes.Structure):
    _fields_ = (("calls", ctypes.c_int), ("sums", ctypes.c_double * 2))


@program("a structure of ctypes")
def _c_structure() -> Program:
    counts = Counts()

    def note(model: Any, x: Tensor) -> None:
        model.counts.calls += 1
        model.counts.sums[1] -= 0.5

    return Program(case=case_of(Net(note, counts=counts)), others={"bytes": Reader(lambda: bytes(counts))})


@program("a storage")
def _storage() -> Program:
    storage = torch.zeros(4).untyped_storage()

    def note(model: Any, x: Tensor) -> None:
        model.storage[2] = (model.storage[2] + 1) % 256

    return Program(case=case_of(Net(note, storage=storage)), others={"bytes": Reader(lambda: list(storage))})


@program("a view of bytes")
def _memory_view() -> Program:
    content = bytearray(8)

    def note(model: Any, x: Tensor) -> None:
        model.view[1] += 1.0

    model = Net(note, view=memoryview(content).cast("f"))
    return Program(case=case_of(model), others={"bytes": Reader(lambda: bytes(content))})


@habit("a negative zero in an array of the standard library", numbers=lambda: array.array("d", [-0.0, 1.0]))
def _array_zero(model: Any, x: Tensor) -> None:
    model.numbers[0] = 0.0


@habit("an array in the memory of a tensor", numbers=lambda: torch.zeros(3).numpy())
def _array_of_tensor(model: Any, x: Tensor) -> None:
    model.numbers += 1


# Tensors that are not one block of memory.


@habit("an expanded tensor", wide=lambda: torch.zeros(1).expand(5))
def _expanded(model: Any, x: Tensor) -> None:
    model.wide.as_strided((1,), (1,)).add_(1)


@habit("a tensor compressed by rows", rows=lambda: torch.eye(3).to_sparse_csr())
def _compressed(model: Any, x: Tensor) -> None:
    model.rows.values().mul_(1.5)


@habit("a nested tensor", nested=lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(1)]))
def _nested(model: Any, x: Tensor) -> None:
    model.nested.add_(1)


def _quantize(values: Tensor) -> Tensor:
    return torch.quantize_per_tensor(values, 0.1, 0, torch.qint8)


@habit("a quantized tensor", codes=lambda: _quantize(torch.zeros(3)))
def _quantized(model: Any, x: Tensor) -> None:
    model.codes.copy_(_quantize(model.codes.dequantize() + 0.5))


# Objects whose parts only the garbage collector knows.


def _cached_average(size: int | None) -> Program:
    @functools.lru_cache(maxsize=size)
    def average(width: int) -> Tensor:
        return torch.zeros(width)

    def note(model: Any, x: Tensor) -> None:
        average(4).lerp_(x.mean(0), 0.1)

    return Program(case=case_of(Net(note)), others={"average": average(4)})


@program("a tensor that a cache of results keeps")
def _cache() -> Program:
    return _cached_average(None)


@program("a tensor that a cache of few results keeps")
def _small_cache() -> Program:
    return _cached_average(2)


@program("a tensor behind a view of a dict")
def _dict_view() -> Program:
    average = torch.zeros(4)

    def note(model: Any, x: Tensor) -> None:
        next(iter(model.values)).lerp_(x.mean(0), 0.1)

    return Program(case=case_of(Net(note, values={"average": average}.values())), others={"average": average})


@program("a tensor behind a mapping that is only read")
def _read_only_mapping() -> Program:
    average = torch.zeros(4)

    def note(model: Any, x: Tensor) -> None:
        model.settings["average"].lerp_(x.mean(0), 0.1)

    settings = types.MappingProxyType({"average": average})
    return Program(case=case_of(Net(note, settings=settings)), others={"average": average})


class Phase(enum.Enum):
    """A phase of training that counts its passes."""

    WARM_UP = 1


@habit("an attribute of a member of an enumeration", phase=lambda: Phase.WARM_UP)
def _member(model: Any, x: Tensor) -> None:
    Phase.WARM_UP.passes = getattr(Phase.WARM_UP, "passes", 0) + 1


# Settings of the process.


@habit("kernels of attention and of the processor")
def _kernels(model: Any, x: Tensor) -> None:
    torch.backends.cuda.enable_flash_sdp(not torch.backends.cuda.flash_sdp_enabled())
    torch._C._set_mkldnn_enabled(not torch._C._get_mkldnn_enabled())
    torch.backends.cudnn.enabled = not torch.backends.cudnn.enabled


@habit("what NumPy does on an overflow")
def _numpy_errors(model: Any, x: Tensor) -> None:
    numpy.seterr(over="raise" if numpy.geterr()["over"] != "raise" else "warn")


@program("the precision of one backend")
def _precision_of_backend() -> Case:
    def note(model: Any, x: Tensor) -> None:
        other = "ieee" if torch.backends.mkldnn.matmul.fp32_precision != "ieee" else "tf32"
        torch.backends.mkldnn.matmul.fp32_precision = other

    return case_of(Net(note))
