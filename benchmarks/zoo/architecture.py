"""An exhibit: a stock architecture, by name, and how a small one of it is built with a batch and a loss."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from leadline import Case

SEED = 20261116  # any fixed number: an exhibit is the same whenever it is built
RATE = 1e-3  # AdamW's own default, which is what somebody who tries an architecture writes


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """`origin` is the package it comes from; `build` raises whatever the package raises."""

    name: str
    origin: str
    build: Callable[[], Case]

    def case(self) -> Case:
        """The exhibit in train mode with AdamW at its default rate, built from a fixed seed."""
        random.seed(SEED)
        numpy.random.seed(SEED)
        torch.manual_seed(SEED)
        made = self.build()
        made.model.train()
        trained = [each for each in made.model.parameters() if each.requires_grad]
        return replace(made, optimizer=torch.optim.AdamW(trained, lr=RATE))


def energy(output: Any) -> Tensor:
    """Mean square of all that the model returns and that depends on its parameters: a loss for what has none."""
    found = [leaf.float().square().mean() for leaf in floats(output) if leaf.requires_grad]
    if not found:
        raise ValueError("the output has no floating-point tensor that depends on a parameter")
    return torch.stack(found).mean()


def towards_noise(output: Any, target: Tensor) -> Tensor:
    """Mean squared distance of the first tensor that the model returns from a fixed one of its shape."""
    return (next(iter(floats(output))).float() - target).square().mean()


def floats(output: Any) -> Iterator[Tensor]:
    """Floating-point tensors anywhere in what a model returned; mappings that pytree does not know included."""
    if isinstance(output, Mapping):
        output = dict(output)
    for leaf in pytree.tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            yield leaf
        elif isinstance(leaf, Mapping):
            yield from floats(leaf)


def labels(classes: int, *shape: int) -> Tensor:
    return torch.randint(0, classes, shape)
