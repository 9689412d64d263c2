"""What a network of a fleet is, the task all of them are trained on, and how weights are drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leadline.errors import InputError
from leadline.lab.fleet.slopes import SLOPES


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    r"""One MLP: $z_0 = W_{in} x + b_{in}$, then `depth` square layers, then $W_{out}\,\phi(z_L) + b_{out}$.

    A square layer is $z_{l+1} = k\,z_l + s\,(W_l\,\phi(z_l) + b_l)$ with $k$ = `skip` and $s$ = `scale`: a plain
    network for $k = 0$, $s = 1$ and a residual one for $k = 1$. Square weights are drawn from $N(0, g/n)$ and their
    biases from $N(0, v)$, $g$ = `gain`, $v$ = `bias`, $n$ the width; the first layer likewise (its gain over its own
    inputs), the last one from $N(0, 1/n)$ without a bias. `rate` is that of plain SGD.
    """

    depth: int
    gain: float = 1.0
    bias: float = 0.0
    rate: float = 0.1
    skip: float = 0.0
    scale: float = 1.0
    activation: str = "tanh"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.depth < 1 or self.gain < 0 or self.bias < 0:
            raise InputError(
                expected="depth of at least 1, gain and bias (variances) of at least 0",
                got=f"depth={self.depth}, gain={self.gain}, bias={self.bias}",
                fix="depth counts the square layers between the first and the last one",
            )
        if self.activation not in SLOPES:
            raise InputError(
                expected="activation: one of " + ", ".join(SLOPES),
                got=f"activation={self.activation!r}",
                fix="take one of these, or train the network alone",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Samples, their classes, and which samples each step sees: the same for every network."""

    inputs: Tensor
    """(samples, features)."""
    targets: Tensor
    """(samples,): classes from 0."""
    batches: Tensor
    """(steps, batch): indices of samples."""
    width: int

    @property
    def classes(self) -> int:
        return int(self.targets.max()) + 1

    @property
    def batch(self) -> int:
        return self.batches.shape[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Of one network, each matrix as (inputs, outputs), so that a batch is multiplied from the left."""

    first: Tensor
    first_bias: Tensor
    square: Tensor
    """(depth, width, width)."""
    square_bias: Tensor
    last: Tensor
    last_bias: Tensor


def draw(net: Net, task: Task) -> Weights:
    """The weights at the start: a function of the network's own seed alone, whoever is trained beside it."""
    generator = torch.Generator().manual_seed(net.seed)
    features, n, classes, dtype = task.inputs.shape[1], task.width, task.classes, task.inputs.dtype

    def normal(*shape: int, variance: float) -> Tensor:
        return math.sqrt(variance) * torch.randn(*shape, generator=generator, dtype=dtype)

    return Weights(
        first=normal(features, n, variance=net.gain / features),
        first_bias=normal(n, variance=net.bias),
        square=normal(net.depth, n, n, variance=net.gain / n),
        square_bias=normal(net.depth, n, variance=net.bias),
        last=normal(n, classes, variance=1 / n),
        last_bias=torch.zeros(classes, dtype=dtype),
    )
