"""A stock architecture by name, built small, with a batch and a loss."""

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

SEED = 20261116
# Cited: the default of torch.optim.AdamW, which most first attempts use.
DEFAULT_LEARNING_RATE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """`origin` is the package it comes from; `build` may raise any error of that package."""

    name: str
    origin: str
    build: Callable[[], Case]

    def case(self) -> Case:
        """Return the architecture in train mode with AdamW at its default rate, built from a fixed seed."""
        random.seed(SEED)
        numpy.random.seed(SEED)
        torch.manual_seed(SEED)
        case = self.build()
        case.model.train()
        trainable = [each for each in case.model.parameters() if each.requires_grad]
        return replace(case, optimizer=torch.optim.AdamW(trainable, lr=DEFAULT_LEARNING_RATE))


def energy(output: Any) -> Tensor:
    """Return the mean square of all outputs that depend on parameters, for models without a loss."""
    squares = [leaf.float().square().mean() for leaf in floats(output) if leaf.requires_grad]
    if not squares:
        raise ValueError("the output has no floating-point tensor that depends on a parameter")
    return torch.stack(squares).mean()


def noise_target_loss(output: Any, target: Tensor) -> Tensor:
    """Return the mean squared error of the first output tensor against a fixed random target."""
    return (next(iter(floats(output))).float() - target).square().mean()


def floats(output: Any) -> Iterator[Tensor]:
    """Yield every floating-point tensor in a model's output, also from mappings that pytree does not know."""
    if isinstance(output, Mapping):
        output = dict(output)
    for leaf in pytree.tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            yield leaf
        elif isinstance(leaf, Mapping):
            yield from floats(leaf)


def labels(classes: int, *shape: int) -> Tensor:
    return torch.randint(0, classes, shape)
