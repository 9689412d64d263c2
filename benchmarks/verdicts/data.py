"""The data of the benchmark: small, deterministic, from installed packages or this repository only."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from sklearn.datasets import load_digits, make_blobs, make_circles, make_moons
from torch import Tensor

TEXT = Path(__file__).parents[2] / "LICENSE"
SAMPLES = 1024  # points of the two-dimensional sets
WINDOW = 16  # characters the language models see
BLOB_CENTRES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Inputs and targets, all of them, and the two losses (nats) between which a run's progress is measured.

    `trivial` is the loss of the best constant prediction: the entropy of the class frequencies (of single
    characters, for text). `fitted` is what a healthy small model reaches in the budget (`reference.py`).
    """

    inputs: Tensor
    targets: Tensor
    classes: int
    trivial: float
    fitted: float


# Medians measured by `python -m benchmarks.verdicts.reference`, to two decimals.
FITTED = {"digits": 0.06, "moons": 0.09, "circles": 0.05, "blobs": 0.07, "text": 2.29}


@cache
def task(name: str) -> Task:
    """The data set of that name."""
    if name == "text":
        inputs, targets = _text()
    elif name == "digits":
        inputs, targets = _digits()
    else:
        inputs, targets = _plane(name)
    counts = torch.bincount(targets.flatten()).double()
    shares = counts[counts > 0] / counts.sum()
    return Task(
        inputs=inputs,
        targets=targets,
        classes=len(counts),
        trivial=float(-(shares * shares.log()).sum()),
        fitted=FITTED[name],
    )


def _digits() -> tuple[Tensor, Tensor]:
    """Images (1797, 64) of scikit-learn's digits, every pixel centered and divided by the images' overall deviation."""
    data = load_digits()
    x = torch.tensor(data.data, dtype=torch.float32)
    return (x - x.mean(0)) / x.std(), torch.tensor(data.target)


def _plane(name: str) -> tuple[Tensor, Tensor]:
    """LabeledProblem points of the plane, standardized."""
    if name == "moons":
        x, y = make_moons(SAMPLES, noise=0.1, random_state=0)
    elif name == "circles":
        x, y = make_circles(SAMPLES, noise=0.05, factor=0.5, random_state=0)
    else:
        x, y = make_blobs(SAMPLES, centers=BLOB_CENTRES, random_state=3)
    points = torch.tensor(x, dtype=torch.float32)
    return (points - points.mean(0)) / points.std(0), torch.tensor(y)


def _text() -> tuple[Tensor, Tensor]:
    """All windows of this repository's license as character numbers, and the character after each."""
    text = TEXT.read_text()
    number = {character: i for i, character in enumerate(sorted(set(text)))}
    ids = torch.tensor([number[character] for character in text])
    windows = ids.unfold(0, WINDOW + 1, 1)
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def batches(data: Task, size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of `size` drawn with replacement, without end; the seed determines the order."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        chosen = torch.randint(0, len(data.inputs), (size,), generator=generator)
        yield data.inputs[chosen], data.targets[chosen]


def uniform_loss(classes: int) -> float:
    """Return the loss of a uniform guess, where an untrained model should start."""
    return math.log(classes)
