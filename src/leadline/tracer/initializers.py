"""Initializes the layers of a model as torch does it."""

from __future__ import annotations

import torch
from torch import nn


def reset_parameters(model: nn.Module, seed: int) -> None:
    """Call the initializer of every layer that has one; parameters of other modules keep their values.

    The random numbers of the process follow from `seed` afterwards.
    """
    torch.manual_seed(seed)
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if callable(reset):
            reset()
