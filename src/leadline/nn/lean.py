"""Lean memory: keep matrix products; make norms, activations and packed projections again going backward."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


class Recipe:
    """How to make a tensor again: a function of one tensor, deterministic, without side effects.

    `uses` counts who will ask for it in a backward pass; in between, the tensor made for the first is kept
    for the next.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], source: Tensor | Recipe) -> None:
        self.function, self.source = function, source
        self.uses = self.asked = 0
        self.value: Tensor | None = None
        if isinstance(source, Recipe):
            source.uses += 1
        self.device: str = source.device if isinstance(source, Recipe) else source.device.type
        self.autocast = torch.is_autocast_enabled(self.device)
        self.dtype = torch.get_autocast_dtype(self.device)

    def __call__(self) -> Tensor:
        if self.value is None:
            source = self.source() if isinstance(self.source, Recipe) else self.source
            with torch.no_grad(), torch.autocast(self.device, self.dtype, enabled=self.autocast):
                self.value = self.function(source)
        value = self.value
        self.asked += 1
        if self.asked >= self.uses:
            self.asked, self.value = 0, None
        return value


def remade(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function(x)`, marked so that inside `lean_memory` autograd saves how to make it, not its values.

    What `function` reads besides `x` (weights) must not change before the backward pass: autograd's own check
    for that does not see it.
    """
    y = function(x)
    if torch.is_grad_enabled():
        _owner(y).recipe = Recipe(function, getattr(_owner(x), "recipe", x.detach()))  # type: ignore[attr-defined]
    return y


def lean_memory(*, enabled: bool) -> AbstractContextManager[object]:
    """Where tensors that `remade` made are not kept for the backward pass.

    Does nothing under `torch.compile`, which plans recomputation itself.
    """
    if not enabled or torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return nullcontext()
    return saved_tensors_hooks(_pack, _unpack)


Packed = tuple[Recipe, torch.Size, tuple[int, ...], int]


def _pack(tensor: Tensor) -> Tensor | Packed:
    recipe: Recipe | None = getattr(_owner(tensor), "recipe", None)
    if recipe is None:
        return tensor
    recipe.uses += 1
    return recipe, tensor.size(), tensor.stride(), int(tensor.storage_offset())


def _unpack(packed: Tensor | Packed) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    recipe, size, stride, offset = packed
    return recipe().as_strided(size, stride, offset)


def _owner(tensor: Tensor) -> Tensor:
    """The tensor that a view looks into; a tensor that is no view is its own owner."""
    return tensor if tensor._base is None else tensor._base
