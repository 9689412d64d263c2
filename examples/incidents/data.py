"""What the incidents learn: handwritten digits, and the letters of the language reference that every Python carries."""

from __future__ import annotations

from functools import cache
from pydoc_data.topics import topics

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F

Batch = tuple[Tensor, Tensor]

LENGTH = 16  # letters that a model reads at once
GUESS_A_DIGIT = 2.303  # nats: ln 10


@cache
def letters() -> tuple[Tensor, int]:
    """The text as numbers, and the size of its alphabet."""
    text = "\n".join(topics[key] for key in sorted(topics)).encode("ascii", "ignore").decode()
    alphabet = {letter: index for index, letter in enumerate(sorted(set(text)))}
    return torch.tensor([alphabet[letter] for letter in text]), len(alphabet)


@cache
def guess_a_letter() -> float:
    """Nats a letter for one who knows how often each occurs and nothing else: a stuck model stays here."""
    ids, size = letters()
    share = torch.bincount(ids, minlength=size) / len(ids)
    return float(-(share * share.clamp_min(1e-12).log()).sum())


def text_batches(count: int, rows: int = 16) -> list[Batch]:
    """Letters, and the letters that follow them: (rows, LENGTH) each."""
    ids, _ = letters()
    starts = torch.randint(len(ids) - LENGTH, (count, rows), generator=torch.Generator().manual_seed(0))
    windows = ids[starts[..., None] + torch.arange(LENGTH + 1)]
    return [(window[:, :-1], window[:, 1:]) for window in windows]


def letter_loss(logits: Tensor, following: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), following.flatten())


def digit_batches(count: int, rows: int = 64) -> list[Batch]:
    """8 x 8 images as rows of 64 numbers with mean 0 and variance 1, and their labels."""
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    pixels = ((images - images.mean()) / images.std()).float()
    chosen = torch.randint(len(pixels), (count, rows), generator=torch.Generator().manual_seed(0))
    return [(pixels[index], labels[index]) for index in chosen]
