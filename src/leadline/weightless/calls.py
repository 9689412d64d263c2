"""Torch calls of a pass without weights: without a graph for gradients, and remembered where they make something new.

No gradient will come back, so autograd need not prepare for one; whether a tensor would have one is kept, since models
ask. And a deep network makes the same call at every layer: the first time it runs, after that a tensor like the one it
made is handed out. Views, writes, calls that give numbers, and whatever may depend on known values always run.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from leadline.weightless.kernels import Kernels, Outline, home_of, outline_key, outline_of
from leadline.weightless.memory import Memory

_CUTTING = (Tensor.detach, torch.detach, Tensor.data.__get__)  # type: ignore[attr-defined]
"""Calls whose result has no gradient though what they read has."""


Call = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""A function and its arguments."""


class Calls:
    """Runs the torch calls of one session's pass."""

    def __init__(self, memory: Memory, kernels: Kernels) -> None:
        self.graph = False
        """Let autograd see all of it: for models that differentiate in their forward pass."""
        self._memory = memory
        self._kernels = kernels
        self._made: dict[Hashable, tuple[Any, list[Outline]]] = {}

    def run(self, call: Call, read: Sequence[Tensor], written: Sequence[Tensor]) -> Any:
        """Make a call; `read` and `written` are the tensors among its arguments."""
        if self.graph:
            return call[0](*call[1], **call[2])
        graded = (
            torch.is_grad_enabled() and call[0] not in _CUTTING and any([each.requires_grad for each in read])
        )
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
            kind, outlines = known
            fresh = self._kernels.make(outlines)
            return fresh[0] if kind is Tensor else kind(fresh)
        made = _without_graph(func, args, kwargs)
        if key is not None and (outlines := self._outlines(made, read)):
            self._made[key] = (Tensor if isinstance(made, Tensor) else type(made), outlines)
        return made

    def _key(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], read: Sequence[Tensor]
    ) -> Hashable:
        """All that the outline of the result depends on; None if some tensor is real or the values of all are known."""
        if not all([type(each) is FakeTensor for each in read]):
            return None
        known = tuple([self._memory.find(each) is not None for each in read])
        home = None if all(known) else home_of(read)
        return home and (func, home, known, outline_key(args), outline_key(kwargs.values()), *kwargs)

    def _outlines(self, made: Any, read: Sequence[Tensor]) -> list[Outline]:
        """Of tensors that are new and of which nothing is known; none if anything else came."""
        found = [made] if isinstance(made, Tensor) else made if type(made) in (tuple, list) else ()
        places = {each.untyped_storage()._cdata for each in read}
        for each in found:
            if type(each) is not FakeTensor or self._memory.find(each) is not None:
                return []
            if each.untyped_storage()._cdata in places:
                return []
            places.add(each.untyped_storage()._cdata)
        return [outline_of(each) for each in found]


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
