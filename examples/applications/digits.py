"""The digits of the two vision examples; every fifth image is held out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.data import Batch, batches_of, digits


def is_held_out() -> Tensor:
    """Return a mask that is True for every fifth image, which is not used for training."""
    return torch.arange(len(digits()[0])) % 5 == 0


def images(chosen: Tensor) -> Batch:
    """Return the chosen images, (number, 1, 8, 8), and their labels."""
    pixels, labels = digits()
    return pixels[chosen].view(-1, 1, 8, 8), labels[chosen]


def batches(count: int, rows: int = 32) -> list[Batch]:
    return batches_of(images(~is_held_out()), count, rows)


def accuracy(model: nn.Module) -> float:
    inputs, labels = images(is_held_out())
    return float((model(inputs).argmax(1) == labels).float().mean())
