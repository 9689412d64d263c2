"""Torch calls of a pass without weights: without a graph for gradients, and remembered where they make something new.

No gradient will come back, so autograd need not prepare for one; whether a tensor would have one is kept, since models
ask. And a deep network makes the same call at every layer: the first time it runs, after that a tensor like the one it
made is handed out; of a view it is remembered whose memory it shows. Writes, calls that give numbers, and whatever may
depend on known values always run.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from leadline.weightless.kernels import Kernels, Outline, home_of, outline_key, outline_of
from leadline.weightless.memory import Memory

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
