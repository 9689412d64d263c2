"""Shapes by PyTorch's own meta kernels, remembered, without the long way through its fake tensor mode.

A deep network asks the same question at every layer. The first time PyTorch answers; after that a new tensor of the
same shape, strides and type is made, at a tenth of the price. Views share memory with what they show, so they are
always made by their kernel. Whatever is special (data-dependent shapes, mixed devices) goes the long way.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

Outline = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]
_device = attrgetter("_fake_device" if "fake_device" in vars(FakeTensor) else "fake_device")
"""Of a fake tensor. Newer torch has a property before the attribute, which is asked too often to be gone through."""
_CPU, _META = torch.device("cpu"), torch.device("meta")


class Kernels:
    """Runs ops on the fake tensors of one mode."""

    def __init__(self, fake: FakeTensorMode) -> None:
        self._fake = fake
        self._ways: dict[Any, str] = {}
        self._outlines: dict[Hashable, tuple[bool, list[Outline]]] = {}
        self._states: dict[torch.device, dict[str, Any]] = {}

    def run(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], given: Sequence[Tensor]) -> Any:
        """`func(*args, **kwargs)`; `given` are the tensors among the arguments."""
        way = self._ways.get(func)
        if way is None:
            way = self._ways[func] = _way(func)
        home = home_of(given)
        if way == "long" or home is None:
            return func(*args, **kwargs)
        return (
            self._view(func, args, kwargs, home)
            if way == "view"
            else self._remembered(func, args, kwargs, home)
        )

    def _remembered(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], home: torch.device) -> Any:
        try:
            key = (func, home, outline_key(args), outline_key(kwargs.values()), *kwargs)
            known = self._outlines.get(key)
        except TypeError:  # an argument that cannot be a key
            return func(*args, **kwargs)
        if known is None:
            made = func(*args, **kwargs)
            found = [made] if isinstance(made, Tensor) else list(made)
            if not all(isinstance(each, FakeTensor) for each in found):
                return made
            known = self._outlines[key] = (isinstance(made, Tensor), [outline_of(each) for each in found])
        single, outlines = (
            known  # the first time too: of what the mode made it keeps a reference, and `.to` refuses
        )
        fresh = self.make(outlines)
        return fresh[0] if single else fresh

    def make(self, outlines: Sequence[Outline]) -> tuple[FakeTensor, ...]:
        """New tensors like those."""
        with torch._C._DisableTorchDispatch():
            metas = [
                torch.empty_strided(shape, stride, dtype=dtype, device=_META)
                for shape, stride, dtype, _ in outlines
            ]
        return tuple([self._wrapped(each, line[-1]) for each, line in zip(metas, outlines, strict=True)])

    def _view(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], home: torch.device) -> Any:
        fake = self._fake
        with torch._C._DisableTorchDispatch():
            fake.in_kernel_invocation = True
            try:
                with torch._C._PreserveDispatchKeyGuard():
                    torch._C._set_meta_in_tls_dispatch_include(True)  # noqa: FBT003  (C, no names)
                    made = func(*args, **kwargs)
            finally:
                fake.in_kernel_invocation = False
        if isinstance(made, Tensor):
            return self._wrapped(made, home)
        return type(made)(self._wrapped(each, home) for each in made)

    def _wrapped(self, meta: Tensor, home: torch.device) -> FakeTensor:
        state = self._states.get(home)
        if state is None:
            with torch._C._DisableTorchDispatch():
                blank = torch.empty(0, device=_META)
            state = self._states[home] = dict(vars(FakeTensor(self._fake, blank, home)))
        made: FakeTensor = Tensor._make_subclass(
            FakeTensor, meta, meta.requires_grad, dispatch_device=True, device_for_backend_keys=home
        )
        vars(made).update(state)
        return made


def _way(func: Any) -> str:
    """How the op can be run: "view" and "fresh" (all outputs are new) are quick."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return "long"
    special = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
    returns, arguments = func._schema.returns, func._schema.arguments
    tensors = bool(returns) and all(str(each.type) == "Tensor" for each in returns)
    writes = any(each.alias_info is not None and each.alias_info.is_write for each in arguments)
    if special & set(func.tags) or writes or func._schema.name in _SPECIAL:
        return "long"
    if any(each.alias_info is not None for each in returns):
        return "view" if _is_quick_view(func) else "long"
    return "fresh" if tensors else "long"


_SPECIAL = frozenset({"aten::lift_fresh", "aten::lift_fresh_copy", "aten::lift"})


def _is_quick_view(func: Any) -> bool:
    kinds = {"Tensor", "List[Tensor]"}
    return all(str(each.type) in kinds for each in func._schema.returns)


def home_of(given: Sequence[Tensor]) -> torch.device | None:
    """The one device of all tensors, if it is one that needs no care."""
    home: torch.device = _device(given[0]) if given else _CPU
    for each in given:
        if (own := _device(each)) is not home and own != home:
            return None
    return home if home in (_CPU, _META) else None


def outline_of(tensor: Tensor) -> Outline:
    """All that a new fake tensor is made of."""
    return tensor.shape, tensor.stride(), tensor.dtype, _device(tensor)


def outline_key(parts: Iterable[Any]) -> Hashable:
    """Arguments as a key: tensors by their outlines, all else by type and value."""
    return tuple(
        [
            (each.shape, each.stride(), each.dtype)
            if isinstance(each, Tensor)
            else ("list", outline_key(each))
            if isinstance(each, list | tuple)
            else ("slice", outline_key((each.start, each.stop, each.step)))
            if type(each) is slice
            else (type(each), each)
            for each in parts
        ]
    )
