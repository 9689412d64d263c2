"""Handwritten digits of scikit-learn: 1797 images of 8 x 8 pixels, every fifth kept back."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(images, labels) to train on, and to test on; images are (number, 1, 8, 8) with mean 0 and variance 1."""
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    pixels = ((images - images.mean()) / images.std()).float().view(-1, 1, 8, 8)
    kept = torch.arange(len(pixels)) % 5 == 0
    return (pixels[~kept], labels[~kept]), (pixels[kept], labels[kept])


def batches(count: int, rows: int = 32) -> list[tuple[Tensor, Tensor]]:
    images, labels = digits()[0]
    chosen = torch.randint(len(images), (count, rows), generator=torch.Generator().manual_seed(0))
    return [(images[index], labels[index]) for index in chosen]


def accuracy(model: nn.Module) -> float:
    images, labels = digits()[1]
    return float((model(images).argmax(1) == labels).float().mean())
