"""Torch calls of a pass without weights: shapes by the meta kernels, remembered."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from leadline.tracer.weightless.memory import Memory

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


# Torch calls of a pass without weights: without a graph for gradients, and remembered where they make something new.
#
# No gradient will come back, so autograd need not prepare for one; whether a tensor would have one is kept,
# since models
# ask. And a deep network makes the same call at every layer: the first time it runs, after that a tensor like
# the one it
# made is handed out; of a view it is remembered whose memory it shows. Writes, calls that give numbers, and
# whatever may
# depend on known values always run.

_CUTTING = (Tensor.detach, torch.detach, Tensor.data.__get__)  # type: ignore[attr-defined]
"""Calls whose result has no gradient though what they read has."""
_requires_gradients = attrgetter("requires_grad")
_BASE = "_leadline_base"


Call = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""A function and its arguments."""


class Calls:
    """Runs the torch calls of one session's pass."""

    def __init__(self, memory: Memory, kernels: Kernels) -> None:
        self.graph = False
        """Let autograd see all of it: for models that differentiate in their forward pass."""
        self._memory = memory
        self._kernels = kernels
        self._made: dict[Hashable, tuple[Any, list[Outline], list[int]]] = {}
        """By call: the kind of result, its tensors, and of each which tensor that was read it shows (-1: none)."""

    def run(self, call: Call, read: Sequence[Tensor], written: Sequence[Tensor]) -> Any:
        """Make a call; `read` and `written` are the tensors among its arguments."""
        if self.graph or not read:  # without tensors: a factory, or the switch of gradients itself
            return call[0](*call[1], **call[2])
        graded = torch.is_grad_enabled() and call[0] not in _CUTTING and any(map(_requires_gradients, read))
        made = _without_graph(*call) if written else self._result(*call, read)
        if graded:
            _require_gradients(written or made)
        return made

    def _result(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], read: Sequence[Tensor]
    ) -> Any:
        key = self._key(func, args, kwargs, read)
        try:
            known = None if key is None else self._made.get(key)
        except TypeError:  # an argument that cannot be a key
            key = known = None
        if known is not None:
            kind, outlines, shown = known
            fresh = self._kernels.make(outlines)
            for each, number in zip(fresh, shown, strict=True):
                if number >= 0:
                    vars(each)[_BASE] = base_of(read[number])
                    each.requires_grad = (
                        read[number].requires_grad and func not in _CUTTING
                    )  # without gradients too
            return fresh[0] if kind is Tensor else kind(fresh)
        made = _without_graph(func, args, kwargs)
        if key is not None and (new := self._new(made, read)):
            kind = Tensor if isinstance(made, Tensor) else type(made)
            self._made[key] = (kind, [outline_of(each) for each in new], [_shown(each, read) for each in new])
        return made

    def _key(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], read: Sequence[Tensor]
    ) -> Hashable:
        """All that the outline of the result depends on; None if some tensor is real or the values of all are known."""
        if set(map(type, read)) != {FakeTensor}:
            return None
        known = tuple([self._memory.find(each) is not None for each in read])
        home = None if all(known) else home_of(read)
        return home and (func, home, known, outline_key(args), outline_key(kwargs.values()), *kwargs)

    def _new(self, made: Any, read: Sequence[Tensor]) -> Sequence[Tensor]:
        """The tensors that a call made, if that is all it made and nothing is known of them."""
        found = (made,) if isinstance(made, Tensor) else made if type(made) in (tuple, list) else ()
        for each in found:
            if type(each) is not FakeTensor or any(each is other for other in read):
                return ()
            if self._memory.find(each) is not None:
                return ()
        return found


def base_of(tensor: Tensor) -> Tensor:
    """The tensor whose memory a view shows; itself if it is none."""
    shown: Tensor | None = vars(tensor).get(_BASE)
    return shown if shown is not None else tensor if tensor._base is None else base_of(tensor._base)


def _shown(tensor: Tensor, read: Sequence[Tensor]) -> int:
    """Which of the tensors read has the same memory."""
    place = tensor.untyped_storage()._cdata
    return next((n for n, each in enumerate(read) if each.untyped_storage()._cdata == place), -1)


def _without_graph(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)  # noqa: FBT003  (C, no names; `torch.no_grad` costs ten times as much)
    try:
        return func(*args, **kwargs)
    finally:
        torch._C._set_grad_enabled(before)


def _require_gradients(made: Any) -> None:
    for each in (made,) if isinstance(made, Tensor) else made if isinstance(made, tuple | list) else ():
        if isinstance(each, Tensor) and each.is_floating_point() and not each.requires_grad:
            each.requires_grad = True
