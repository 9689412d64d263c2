"""A deep sigmoid network on handwritten digits: it does not train, and one pass shows why.

    python examples/failing_mlp.py
    leadline check examples/failing_mlp.py:factory
    leadline check examples/failing_mlp.py:shallow

Needs scikit-learn, for the digits.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import leadline

SAMPLES = 256


def factory(layers: int = 30, width: int = 128) -> leadline.Case:
    """Sigmoid layers with PyTorch's default initialization, at any depth."""
    torch.manual_seed(0)
    images, labels = digits()
    widths = [images.shape[1], *[width] * layers]
    stack = [
        layer
        for incoming, outgoing in pairwise(widths)
        for layer in (nn.Linear(incoming, outgoing), nn.Sigmoid())
    ]
    return leadline.Case(nn.Sequential(*stack, nn.Linear(width, 10)), images, labels, F.cross_entropy)


def shallow() -> leadline.Case:
    """The same network with two layers, for comparison: a sigmoid as such is not a problem."""
    return factory(layers=2)


def digits() -> tuple[Tensor, Tensor]:
    """Return 8 x 8 images as rows with mean 0 and variance 1, and their labels."""
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images[:SAMPLES], dtype=torch.float32)
    return (pixels - pixels.mean()) / pixels.std(), torch.tensor(labels[:SAMPLES])


def main() -> None:
    case = factory()
    report = leadline.check(case.model, case.inputs, case.targets, case.loss)
    print(report)


if __name__ == "__main__":
    main()
