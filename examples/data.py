"""The data of the incidents and applications, which needs no download: handwritten digits, and the text of Python's
language reference.

    python examples/data.py
"""

from __future__ import annotations

from functools import cache
from pydoc_data.topics import topics

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F

Batch = tuple[Tensor, Tensor]

# Derived: ln 10 nats, the loss of a uniform guess among ten digits.
GUESS_A_DIGIT = 2.303


@cache
def digits() -> Batch:
    """Return 1797 images of 8 x 8 pixels as rows of 64 numbers with mean 0 and variance 1, and their labels."""
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    return ((images - images.mean()) / images.std()).float(), labels


def batches_of(data: Batch, count: int, rows: int) -> list[Batch]:
    """Return this many random batches, the same ones each time."""
    inputs, targets = data
    chosen = torch.randint(len(inputs), (count, rows), generator=torch.Generator().manual_seed(0))
    return [(inputs[index], targets[index]) for index in chosen]


@cache
def letters() -> tuple[Tensor, int]:
    """Return the text as numbers, and the size of its alphabet."""
    text = "\n".join(topics[key] for key in sorted(topics)).encode("ascii", "ignore").decode()
    alphabet = {letter: index for index, letter in enumerate(sorted(set(text)))}
    return torch.tensor([alphabet[letter] for letter in text]), len(alphabet)


@cache
def guess_a_letter() -> float:
    """Return the nats per letter of a guess from letter frequencies alone; a stuck model stays here."""
    ids, size = letters()
    share = torch.bincount(ids, minlength=size) / len(ids)
    return float(-(share * share.clamp_min(1e-12).log()).sum())


def text_batches(ids: Tensor, count: int, rows: int, length: int) -> list[Batch]:
    """Return letters and the letters that follow them, each (rows, length)."""
    starts = torch.randint(len(ids) - length, (count, rows), generator=torch.Generator().manual_seed(0))
    windows = ids[starts[..., None] + torch.arange(length + 1)]
    return [(window[:, :-1], window[:, 1:]) for window in windows]


def letter_loss(logits: Tensor, following: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), following.flatten())


if __name__ == "__main__":
    print(f"{len(digits()[0])} digits; {len(letters()[0])} letters of {letters()[1]} kinds")
    print(f"a guess costs {GUESS_A_DIGIT} nats per digit and {guess_a_letter():.2f} nats per letter")
