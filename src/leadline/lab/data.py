"""Real data that is on every machine: digits of scikit-learn, and the text of Python's own manual."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module

import torch
from torch import Tensor

from leadline.errors import InputError

GRAY_LEVELS = 17  # grey levels of the digits, 0 to 16
SIDE = 8


@lru_cache(maxsize=1)
def digits() -> tuple[Tensor, Tensor]:
    """1797 images of 8 x 8 grey levels from 0 to 16, and their classes. In an order drawn once, so that parts of it
    are samples: as the file comes, one writer follows the other."""
    try:
        loaded = import_module("sklearn.datasets").load_digits()
    except ImportError:
        raise InputError(
            expected="scikit-learn, which brings the digits",
            got="an environment without it",
            fix="pip install 'leadline[lab]'",
        ) from None
    images, classes = torch.tensor(loaded.images, dtype=torch.float32), torch.tensor(loaded.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return images[order], classes[order].long()


def standardized_digits() -> tuple[Tensor, Tensor]:
    """(1797, 64) with mean 0 and variance 1 over all of it, and the classes."""
    images, classes = digits()
    flat = images.flatten(1)
    return (flat - flat.mean()) / flat.std(), classes


@lru_cache(maxsize=1)
def manual_text() -> tuple[Tensor, int]:
    """The English of Python's `help()` topics as character codes, and how many characters there are.

    Lower case, with one code for every run of spaces and one for whatever is rare, so that some steps suffice to learn.
    """
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    text = " ".join(" ".join(topics[name].lower().split()) for name in sorted(topics))
    known = " abcdefghijklmnopqrstuvwxyz.,()_"
    table = {letter: code for code, letter in enumerate(known)}
    codes = [table.get(letter, len(known)) for letter in text]
    return torch.tensor(codes), len(known) + 1
