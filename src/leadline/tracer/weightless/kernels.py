"""Run ops on fake tensors: meta kernels compute the shapes of results, which are cached."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from leadline.tracer.weightless.memory import Memory

TensorLayout = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]
_device = attrgetter("_fake_device" if "fake_device" in vars(FakeTensor) else "fake_device")
"""The device of a fake tensor. Newer torch wraps the attribute in a property, which is too slow for every op."""
_CPU, _META = torch.device("cpu"), torch.device("meta")


class Kernels:
    """Runs ops on the fake tensors of one mode."""

    def __init__(self, fake: FakeTensorMode) -> None:
        self._fake = fake
        self._paths: dict[Any, str] = {}
        self._layouts: dict[Hashable, tuple[bool, list[TensorLayout]]] = {}
        self._states: dict[torch.device, dict[str, Any]] = {}

    def run(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], given: Sequence[Tensor]) -> Any:
        """Return `func(*args, **kwargs)`; `given` are the tensors among the arguments."""
        path = self._paths.get(func)
        if path is None:
            path = self._paths[func] = _find_path(func)
        device = common_device(given)
        if path == "full" or device is None:
            return func(*args, **kwargs)
        return (
            self._view(func, args, kwargs, device)
            if path == "view"
            else self._cached(func, args, kwargs, device)
        )

    def _cached(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], device: torch.device) -> Any:
        try:
            key = (func, device, layout_key(args), layout_key(kwargs.values()), *kwargs)
            known = self._layouts.get(key)
        except TypeError:  # an argument that cannot be a key
            return func(*args, **kwargs)
        if known is None:
            result = func(*args, **kwargs)
            found = [result] if isinstance(result, Tensor) else list(result)
            if not all(isinstance(each, FakeTensor) for each in found):
                return result
            known = self._layouts[key] = (isinstance(result, Tensor), [layout_of(each) for each in found])
        single, layouts = (
            known  # also the first time: the mode keeps a reference to its own result, which `.to` refuses
        )
        fresh = self.make(layouts)
        return fresh[0] if single else fresh

    def make(self, layouts: Sequence[TensorLayout]) -> tuple[FakeTensor, ...]:
        """Return new tensors of these layouts."""
        with torch._C._DisableTorchDispatch():
            metas = [
                torch.empty_strided(shape, stride, dtype=dtype, device=_META)
                for shape, stride, dtype, _ in layouts
            ]
        return tuple([self._wrapped(each, line[-1]) for each, line in zip(metas, layouts, strict=True)])

    def _view(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], device: torch.device) -> Any:
        fake = self._fake
        with torch._C._DisableTorchDispatch():
            fake.in_kernel_invocation = True
            try:
                with torch._C._PreserveDispatchKeyGuard():
                    torch._C._set_meta_in_tls_dispatch_include(True)  # noqa: FBT003  (C, no names)
                    result = func(*args, **kwargs)
            finally:
                fake.in_kernel_invocation = False
        if isinstance(result, Tensor):
            return self._wrapped(result, device)
        return type(result)(self._wrapped(each, device) for each in result)

    def _wrapped(self, meta: Tensor, device: torch.device) -> FakeTensor:
        state = self._states.get(device)
        if state is None:
            with torch._C._DisableTorchDispatch():
                blank = torch.empty(0, device=_META)
            state = self._states[device] = dict(vars(FakeTensor(self._fake, blank, device)))
        result: FakeTensor = Tensor._make_subclass(
            FakeTensor, meta, meta.requires_grad, dispatch_device=True, device_for_backend_keys=device
        )
        vars(result).update(state)
        return result


def _find_path(func: Any) -> str:
    """Return how the op can be run: "view" and "fresh" (all outputs are new) are fast, "full" is PyTorch's own way."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return "full"
    special = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
    returns, arguments = func._schema.returns, func._schema.arguments
    tensors = bool(returns) and all(str(each.type) == "Tensor" for each in returns)
    writes = any(each.alias_info is not None and each.alias_info.is_write for each in arguments)
    if special & set(func.tags) or writes or func._schema.name in _SPECIAL:
        return "full"
    if any(each.alias_info is not None for each in returns):
        return "view" if _is_quick_view(func) else "full"
    return "fresh" if tensors else "full"


_SPECIAL = frozenset({"aten::lift_fresh", "aten::lift_fresh_copy", "aten::lift"})


def _is_quick_view(func: Any) -> bool:
    kinds = {"Tensor", "List[Tensor]"}
    return all(str(each.type) in kinds for each in func._schema.returns)


def common_device(given: Sequence[Tensor]) -> torch.device | None:
    """Return the device of all tensors, if it is the CPU or the meta device; else None."""
    device: torch.device = _device(given[0]) if given else _CPU
    for each in given:
        if (own := _device(each)) is not device and own != device:
            return None
    return device if device in (_CPU, _META) else None


def layout_of(tensor: Tensor) -> TensorLayout:
    """Return all that is needed to make a fake tensor like this one."""
    return tensor.shape, tensor.stride(), tensor.dtype, _device(tensor)


def layout_key(parts: Iterable[Any]) -> Hashable:
    """Return the arguments as a cache key: tensors by their layouts, everything else by type and value."""
    return tuple(
        [
            (each.shape, each.stride(), each.dtype)
            if isinstance(each, Tensor)
            else ("list", layout_key(each))
            if isinstance(each, list | tuple)
            else ("slice", layout_key((each.start, each.stop, each.step)))
            if type(each) is slice
            else (type(each), each)
            for each in parts
        ]
    )


# Torch calls of a pass without weights, without an autograd graph and cached.
#
# No backward pass follows, so autograd need not prepare for one; only `requires_grad` is tracked, because models read
# it. A deep network makes the same call at every layer. The call runs the first time; after that, a tensor like its
# result is returned, and for a view the cache says which tensor it is a view of. Writes, calls that return numbers, and
# calls that may depend on known values always run.

_DETACHING = (Tensor.detach, torch.detach, Tensor.data.__get__)  # type: ignore[attr-defined]
"""Calls whose result requires no gradient even if their argument does."""
_requires_gradients = attrgetter("requires_grad")
_BASE = "_leadline_base"


Call = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""A function and its arguments."""


class CallCache:
    """Runs the torch calls of a pass and caches their results."""

    def __init__(self, memory: Memory, kernels: Kernels) -> None:
        self.build_graph = False
        """Let autograd build its graph, for models that differentiate in their forward pass."""
        self._memory = memory
        self._kernels = kernels
        self._cache: dict[Hashable, tuple[Any, list[TensorLayout], list[int]]] = {}
        """By call: type of the result, layouts of its tensors, and the input that each is a view of (-1: none)."""

    def run(self, call: Call, read: Sequence[Tensor], written: Sequence[Tensor]) -> Any:
        """Make a call; `read` and `written` are the tensors among its arguments."""
        if (
            self.build_graph or not read
        ):  # without tensors it is a factory, or it switches gradients on or off
            return call[0](*call[1], **call[2])
        graded = torch.is_grad_enabled() and call[0] not in _DETACHING and any(map(_requires_gradients, read))
        result = _without_graph(*call) if written else self._result(*call, read)
        if graded:
            _require_gradients(written or result)
        return result

    def _result(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], read: Sequence[Tensor]
    ) -> Any:
        key = self._key(func, args, kwargs, read)
        try:
            known = None if key is None else self._cache.get(key)
        except TypeError:  # an argument that cannot be a key
            key = known = None
        if known is not None:
            kind, layouts, shown = known
            fresh = self._kernels.make(layouts)
            for each, number in zip(fresh, shown, strict=True):
                if number >= 0:
                    vars(each)[_BASE] = view_base(read[number])
                    each.requires_grad = (
                        read[number].requires_grad and func not in _DETACHING
                    )  # without gradients too
            return fresh[0] if kind is Tensor else kind(fresh)
        result = _without_graph(func, args, kwargs)
        if key is not None and (new := self._new(result, read)):
            kind = Tensor if isinstance(result, Tensor) else type(result)
            self._cache[key] = (
                kind,
                [layout_of(each) for each in new],
                [_viewed_input(each, read) for each in new],
            )
        return result

    def _key(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], read: Sequence[Tensor]
    ) -> Hashable:
        """Return all that the layout of the result depends on; None if a tensor is real or all values are known."""
        if set(map(type, read)) != {FakeTensor}:
            return None
        known = tuple([self._memory.find(each) is not None for each in read])
        device = None if all(known) else common_device(read)
        return device and (func, device, known, layout_key(args), layout_key(kwargs.values()), *kwargs)

    def _new(self, result: Any, read: Sequence[Tensor]) -> Sequence[Tensor]:
        """The tensors that a call result, if that is all it result and nothing is known of them."""
        found = (result,) if isinstance(result, Tensor) else result if type(result) in (tuple, list) else ()
        for each in found:
            if type(each) is not FakeTensor or any(each is other for other in read):
                return ()
            if self._memory.find(each) is not None:
                return ()
        return found


def view_base(tensor: Tensor) -> Tensor:
    """Return the tensor whose memory a view shares; the tensor itself if it is not a view."""
    shown: Tensor | None = vars(tensor).get(_BASE)
    return shown if shown is not None else tensor if tensor._base is None else view_base(tensor._base)


def _viewed_input(tensor: Tensor, read: Sequence[Tensor]) -> int:
    """Return the position of the input that shares the tensor's memory; -1 if there is none."""
    place = tensor.untyped_storage()._cdata
    return next((n for n, each in enumerate(read) if each.untyped_storage()._cdata == place), -1)


def _without_graph(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)  # noqa: FBT003  (C, no names; `torch.no_grad` costs ten times as much)
    try:
        return func(*args, **kwargs)
    finally:
        torch._C._set_grad_enabled(before)


def _require_gradients(result: Any) -> None:
    for each in (
        (result,) if isinstance(result, Tensor) else result if isinstance(result, tuple | list) else ()
    ):
        if isinstance(each, Tensor) and each.is_floating_point() and not each.requires_grad:
            each.requires_grad = True
