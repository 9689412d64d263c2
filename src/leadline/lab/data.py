"""Real data that needs no download: the digits of scikit-learn, and the text of Python's own manual."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module

import torch
from torch import Tensor

from leadline.errors import InputError, install_extra

# Derived: the pixels of the digits have the values 0 to 16.
GRAY_LEVELS = 17


@lru_cache(maxsize=1)
def digits() -> tuple[Tensor, Tensor]:
    """Return 1797 images of 8 x 8 gray levels from 0 to 16, and their classes.

    They are shuffled once with a fixed seed, so that any part of them is a sample: the file itself is sorted by writer.
    """
    try:
        loaded = import_module("sklearn.datasets").load_digits()
    except ImportError:
        raise InputError(
            expected="scikit-learn, which contains the digits",
            got="an environment without it",
            fix=install_extra("lab"),
        ) from None
    images, classes = torch.tensor(loaded.images, dtype=torch.float32), torch.tensor(loaded.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return images[order], classes[order].long()


def standardized_digits() -> tuple[Tensor, Tensor]:
    """Return the digits as (1797, 64), with mean 0 and variance 1 over all entries, and their classes."""
    images, classes = digits()
    flat = images.flatten(1)
    return (flat - flat.mean()) / flat.std(), classes


@lru_cache(maxsize=1)
def manual_text() -> tuple[Tensor, int]:
    """Return the text of Python's `help()` topics as character codes, and the size of the alphabet.

    The text is in lower case, runs of spaces become one space, and all rare characters share one code, so that a few
    steps are enough to learn something.
    """
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    text = " ".join(" ".join(topics[name].lower().split()) for name in sorted(topics))
    known = " abcdefghijklmnopqrstuvwxyz.,()_"
    table = {letter: code for code, letter in enumerate(known)}
    codes = [table.get(letter, len(known)) for letter in text]
    return torch.tensor(codes), len(known) + 1
