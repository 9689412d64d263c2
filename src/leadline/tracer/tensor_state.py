"""One tensor as it was: its memory, its values and its place in autograd, compared and restored bit for bit."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from leadline.tracer import stats

_COPIED = ("", stats.QUANTIZED, stats.STRIDED_NESTED)
"""Tensors whose values are copied and written back, also if statistics of them make no sense."""


@dataclass(slots=True, eq=False)
class TensorState:
    """A tensor as it was: its memory, its values, its place in autograd."""

    tensor: Tensor
    alias: Tensor
    """Shares memory, shape, strides and dtype with the tensor as they were."""
    requires_grad: bool
    is_leaf: bool
    values: Tensor | None = None
    """A copy of the values; None if they are not restored."""
    storage_bytes: int | None = None
    block: tuple[int, int] | None = None
    """Address and number of bytes of the copy, if the tensor is one block of the host's memory like the copy."""
    version: int | None = None
    """The version counter, by which autograd notices that a tensor it saved was changed."""
    grad: Tensor | None = None
    grad_values: Tensor | None = None

    def copy_values(self, find_copy: Callable[[Tensor], Tensor | None] | None = None) -> None:
        """Copy the values, so that `restore` puts them back; `find_copy` returns a copy if there is one already."""
        tensor = self.tensor
        if stats.unobservable(tensor) not in _COPIED:
            return
        known = None if find_copy is None else find_copy(tensor)
        self.values = self.alias.clone() if known is None else known
        if _is_plain(tensor):
            self.storage_bytes = self.alias.untyped_storage().nbytes()
            self.block = _block_of(self.alias, self.values)
        self.version = None if tensor.is_inference() else tensor._version

    def drop_values(self) -> None:
        """Free the copy of the values."""
        self.values = self.storage_bytes = self.block = self.version = None

    def restore(self) -> None:
        """Make the tensor what it was; what has not changed is not written."""
        tensor, alias = self.tensor, self.alias
        if self.is_leaf and tensor.grad_fn is not None:
            tensor.detach_()
        if self.storage_bytes is not None and alias.untyped_storage().nbytes() != self.storage_bytes:
            alias.untyped_storage().resize_(self.storage_bytes)
        if not (_is_plain(tensor) and _is_plain(alias)):
            if self.values is not None and not same_bits(tensor, self.values):
                _write_whole(tensor, self.values)
        else:
            if not _has_same_memory(tensor, alias):
                tensor.data = alias
            if self.block is not None and self.values is not None:
                if not self._holds_copied_bytes(*self.block):
                    _write(alias, self.values)
            elif self.values is not None:
                _restore_values(alias, self.values)
        if self.is_leaf and tensor.requires_grad != self.requires_grad:
            tensor.requires_grad_(self.requires_grad)
        if self.version is not None and tensor._version != self.version:
            torch._C._autograd._unsafe_set_version_counter((tensor,), (self.version,))

    def _holds_copied_bytes(self, address: int, count: int) -> bool:
        """Whether the memory of the tensor holds what was copied."""
        return not _MEMCMP(self.alias.data_ptr(), address, count)

    def restore_gradient(self) -> None:
        if self.tensor.grad is not self.grad:
            self.tensor.grad = self.grad
        if self.grad is not None and self.grad_values is not None:
            _restore_values(self.grad, self.grad_values)


def capture_tensor(
    tensor: Tensor, find_copy: Callable[[Tensor], Tensor | None], has_values: bool
) -> TensorState:
    """The state of a tensor, with a copy of its values or without; see `TensorState.copy_values`."""
    state = TensorState(
        tensor=tensor, alias=tensor.detach(), requires_grad=tensor.requires_grad, is_leaf=tensor.is_leaf
    )
    if has_values:
        state.copy_values(find_copy)
    return state


class KnownCopies:
    """Copies of values that another snapshot holds; they are used again for tensors that still have these values."""

    def __init__(self, states: Mapping[int, TensorState]) -> None:
        self._states = states
        """By the id of each tensor."""

    def find(self, tensor: Tensor) -> Tensor | None:
        """Return the copy of this tensor's values; None if there is none, or if the values have changed."""
        state = self._states.get(id(tensor))
        if state is None or state.values is None:
            return None
        if _is_on_host(tensor):
            is_same = same_bits(tensor.detach(), state.values)
        else:
            is_same = id(tensor) in self._unchanged_on_devices
        return state.values if is_same else None

    @cached_property
    def _unchanged_on_devices(self) -> set[int]:
        """The ids of the tensors outside the host whose values are still the same.

        All of them are compared in one go, so the host waits for each device once and not for each tensor.
        """
        flags: defaultdict[torch.device, dict[int, Tensor]] = defaultdict(dict)
        for key, state in self._states.items():
            tensor = state.tensor
            if state.values is None or _is_on_host(tensor) or stats.unobservable(tensor):
                continue
            differs = stats.attempt(_differs, tensor.detach(), state.values)[0]
            if differs is not None:
                flags[differs.device][key] = differs
        unchanged: set[int] = set()
        for of_device in flags.values():
            has_changed = torch.stack(list(of_device.values())).cpu().tolist()
            unchanged.update(key for key, changed in zip(of_device, has_changed, strict=True) if not changed)
        return unchanged


def _is_on_host(tensor: Tensor) -> bool:
    """Whether the host can read the tensor without waiting for a device."""
    return tensor.device.type == "cpu"


def _restore_values(tensor: Tensor, values: Tensor) -> None:
    """Make the values of a tensor what they were.

    On the CPU they are written if they differ. On an accelerator they are written in any case: to compare them first
    would read as much memory and make the host wait for the device, once for each tensor.
    """
    if not _is_on_host(tensor):
        try:
            _write(tensor, values)
        except RuntimeError:  # some elements share their memory (an expanded tensor), which copying refuses
            pass
        else:
            return
    if not same_bits(tensor, values):
        _write(tensor, values)


def _has_same_memory(tensor: Tensor, alias: Tensor) -> bool:
    """Whether two strided tensors are the same place in memory, read in the same way."""
    return (
        tensor.dtype == alias.dtype
        and tensor.shape == alias.shape
        and tensor.stride() == alias.stride()
        and tensor.storage_offset() == alias.storage_offset()
        and storage_of(tensor) == storage_of(alias)
    )


def storage_of(tensor: Tensor) -> int:
    """Return the identity of a tensor's storage; of the tensor itself if it has no single storage (if it is sparse)."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _is_plain(tensor: Tensor) -> bool:
    """Whether the tensor is one block of memory with strides."""
    return tensor.layout is torch.strided and not tensor.is_nested


def _write_whole(tensor: Tensor, values: Tensor) -> None:
    """Write a sparse or nested tensor; assigning to `data` does nothing to one that is compressed by rows."""
    is_compressed = tensor.layout in _COMPRESSED
    if tensor.layout is not values.layout or not (is_compressed or tensor.layout is torch.strided):
        tensor.data = values.clone()
        return
    with torch.no_grad(), _unsafe_preserve_version_counter(tensor):
        if is_compressed:
            tensor.resize_as_sparse_(values)
        tensor.copy_(values)


_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def _write(tensor: Tensor, values: Tensor) -> None:
    """Write values without autograd noticing: the user may hold a graph that saved this tensor."""
    if tensor.layout is torch.strided and 0 in tensor.stride():  # an expanded tensor: write each place once
        once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
        tensor, values = tensor[once], values[once]
    if tensor.is_inference() != torch.is_inference_mode_enabled():
        with torch.inference_mode(mode=tensor.is_inference()):
            _write(tensor, values)
        return
    with torch.no_grad():
        if tensor.is_inference():
            tensor.copy_(values)
        else:
            with _unsafe_preserve_version_counter(tensor):
                tensor.copy_(values)


def _find_memcmp() -> Any:
    try:
        compare = ctypes.CDLL(None).memcmp
    except (TypeError, OSError, AttributeError):  # pragma: no cover  (Windows)
        return None
    compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return compare


_MEMCMP = _find_memcmp()


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and bits; NaN equals itself, and 0.0 is not -0.0."""
    if one.is_nested or other.is_nested:
        return False  # unknown: they are written back
    if one.shape != other.shape or one.dtype != other.dtype or one.layout is not other.layout:
        return False
    if one.layout is torch.sparse_coo:
        return same_bits(one._indices(), other._indices()) and same_bits(one._values(), other._values())
    if one.layout is not torch.strided or one.is_quantized:
        return False  # unknown, too
    if not one.numel():
        return True
    first, second = _address(one), _address(other)
    if _MEMCMP is not None and first and second:
        return not _MEMCMP(first, second, one.numel() * one.element_size())
    is_equal, refusal = stats.attempt(_equal_as_integers, one, other)
    return bool(is_equal) or bool(refusal)  # what refuses to be compared refuses to be written too


def _block_of(tensor: Tensor, values: Tensor) -> tuple[int, int] | None:
    """Address and bytes of the values, if the tensor and they are one block of the host's memory each."""
    if _MEMCMP is None or tensor.dtype is not values.dtype or not _address(tensor):
        return None
    address = _address(values)
    return (address, values.numel() * values.element_size()) if address else None


def _address(tensor: Tensor) -> int:
    """Where the elements of a contiguous tensor on the CPU are; 0 if it is another one, or does not hold its memory.

    A class that only wraps other tensors has a shape and no memory. Reading there would end the process.
    """
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.device.type != "cpu":
        return 0
    if not tensor.is_contiguous():
        return 0
    needed = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    return tensor.data_ptr() if tensor.untyped_storage().nbytes() >= needed else 0


def _differs(one: Tensor, other: Tensor) -> Tensor | None:
    """Whether two strided tensors differ in a bit, as a tensor on their device; None if that is not known there."""
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return None
    if one.layout is not torch.strided or one.is_nested or one.is_quantized:
        return None
    return torch.ne(_as_integers(one), _as_integers(other)).any()


def _equal_as_integers(one: Tensor, other: Tensor) -> bool:
    return torch.equal(_as_integers(one), _as_integers(other))


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _as_integers(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.view(_INTEGERS[tensor.element_size()])


def memory_range(tensor: Tensor) -> tuple[int, int] | None:
    """The addresses of a tensor's memory; None if it has none, or only stands for one that has."""
    if stats.unobservable(tensor):
        return None
    try:
        storage = tensor.untyped_storage()
        return (storage.data_ptr(), storage.data_ptr() + storage.nbytes()) if storage.nbytes() else None
    except (RuntimeError, NotImplementedError, ValueError):
        return None
