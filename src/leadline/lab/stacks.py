"""The stacks of layers that claims are tested on: plain ones, and residual ones with scaled branches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from leadline.lab.measurements import DOUBLE
from leadline.nn import MLP, Scheme
from leadline.nn.scheme import Place

Activation = Callable[[Tensor], Tensor]


def gaussian_weight(fan_in: int, fan_out: int, gain: float = 1.0) -> Tensor:
    r"""Return a matrix (outputs, inputs) with $\mathrm{Var}(W) = \mathrm{gain}/n$, $n$ the fan-in."""
    return torch.randn(fan_out, fan_in, dtype=DOUBLE) * math.sqrt(gain / fan_in)


def linear_layer(matrix: Tensor) -> nn.Linear:
    """Return a layer without bias that has this matrix."""
    layer = nn.Linear(matrix.shape[1], matrix.shape[0], bias=False, dtype=DOUBLE)
    layer.weight = nn.Parameter(matrix)
    return layer


class Dense(nn.Module):
    r"""$\phi(Wx)$, or $W\phi(x)$ if `order` is "first"."""

    def __init__(
        self, matrix: Tensor, activation: Activation = torch.relu, order: Literal["last", "first"] = "last"
    ) -> None:
        super().__init__()
        self.linear, self.activation, self.order = linear_layer(matrix), activation, order

    def forward(self, x: Tensor) -> Tensor:
        if self.order == "first":
            y: Tensor = self.linear(self.activation(x))
            return y
        return self.activation(self.linear(x))


class ResidualBlock(nn.Module):
    r"""$x + \varepsilon f(x)$."""

    def __init__(self, branch: nn.Module, scale: float = 1.0) -> None:
        super().__init__()
        self.branch, self.scale = branch, scale

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.branch(x)
        return x + self.scale * y


def plain_stack(
    depth: int, width: int, gain: float = 2.0, activation: Activation = torch.relu
) -> list[nn.Module]:
    """Return equal layers $W\\phi(x)$ with Gaussian weights; the default gain is He's for ReLU."""
    return [Dense(gaussian_weight(width, width, gain), activation, "first") for _ in range(depth)]


def orthogonal_stack(depth: int, width: int) -> list[nn.Module]:
    """Return linear layers whose matrices are random and orthogonal."""
    return [linear_layer(nn.init.orthogonal_(torch.empty(width, width, dtype=DOUBLE))) for _ in range(depth)]


def identity(x: Tensor) -> Tensor:
    return x


def scaled_by_depth(alpha: float) -> Scheme:
    r"""Return the scheme $x + N^{-\alpha} f(x)$ without norms, $N$ the number of blocks."""

    def branch(place: Place) -> float:
        return float(place.total**-alpha)

    return Scheme(
        name=f"branch N^-{alpha:g}",
        summary=f"x + N^-{alpha:g} f(x)",
        norms=(),
        branch=branch,
        final_norm=False,
        counts="sub-layers",
        paper="Su Jianlin 2022, kexue.fm archives 8994",
        where="y = x + eps f(x)",
    )


def residual_stack(
    depth: int, width: int, scheme: str | Scheme, activation: str | Activation = "relu"
) -> list[nn.Module]:
    r"""Return blocks of `leadline.nn.MLP` with the branch $W_2\,\phi(W_1 x)$, which maps unit input to unit output."""
    return list(MLP(width, width, depth, 1, scheme=scheme, activation=activation).double().blocks)


def with_readout(layers: list[nn.Module], width: int) -> nn.Sequential:
    """Return the layers followed by a fixed vector of unit length, which makes the output one number."""
    head = linear_layer(nn.functional.normalize(gaussian_weight(width, 1)))
    head.weight.requires_grad_(False)  # noqa: FBT003  (torch's own signature)
    return nn.Sequential(*layers, head)
