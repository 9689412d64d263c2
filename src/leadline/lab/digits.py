"""The handwritten digits that come with scikit-learn: 1797 images of 8 x 8, no download."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from leadline.errors import InputError

SHUFFLE = 1  # seed of the order of the images: the file has them in runs of writers


@cache
def digits(count: int | None) -> tuple[Tensor, Tensor]:
    """Standardised images as rows of 64 numbers, and their labels; the first `count` of them, or all."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError:
        raise InputError(
            expected="scikit-learn, whose digits some experiments train on",
            got="an environment without it",
            fix="install scikit-learn, or leave those experiments out",
        ) from None
    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(SHUFFLE))[:count]
    images = torch.tensor(found.data, dtype=torch.float32)[order]
    return (images - images.mean()) / images.std(), torch.tensor(found.target)[order]
