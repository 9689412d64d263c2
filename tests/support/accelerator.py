"""A stand-in for an accelerator: tensors that report the device `cuda:0`, hold their numbers on the CPU, and count how
often the host waits for a number of theirs.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

DEVICE = torch.device("cuda", 0)


class Accelerated(Tensor):
    """A tensor on the stand-in. Every read of its numbers by the host is counted in `waits`."""

    waits: ClassVar[Counter[str]] = Counter()
    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Accelerated:
        made: Accelerated = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            requires_grad=inner.requires_grad,
        )
        made.inner = inner.detach()
        return made

    device = property(lambda self: DEVICE)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]

    def cpu(self, *_: Any, **__: Any) -> Tensor:
        type(self).waits["copy"] += 1
        return self.inner

    def tolist(self) -> Any:
        type(self).waits["tolist"] += 1
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            cls.waits["item"] += 1
        if func in (torch.ops.aten.equal.default, torch.ops.aten.is_nonzero.default):
            cls.waits["compare"] += 1
        wrappers: dict[int, Accelerated] = {}

        def inside(item: Any) -> Any:
            if isinstance(item, Accelerated):
                wrappers[id(item.inner)] = item
                return item.inner
            return torch.device("cpu") if item == DEVICE else item

        def outside(item: Any) -> Any:
            if not isinstance(item, Tensor):
                return item
            return wrappers[id(item)] if id(item) in wrappers else cls(item)

        with torch._C.DisableTorchFunctionSubclass():
            result = func(*tree_map(inside, args), **tree_map(inside, kwargs or {}))
        return tree_map(outside, result)


def on_accelerator(model: torch.nn.Module) -> torch.nn.Module:
    """Move the parameters of a model to the stand-in."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            moved = torch.nn.Parameter(Accelerated(parameter.detach()), parameter.requires_grad)
            setattr(module, name, moved)
    return model
