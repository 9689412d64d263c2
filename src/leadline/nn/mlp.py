"""MLP: plain and residual stacks of fully connected layers on the same `Residual`."""

from __future__ import annotations

from typing import Any

from torch import Generator, Tensor, nn

from leadline.nn import init
from leadline.nn.activations import Activation, find_activation, gaussian_moments
from leadline.nn.residual import Residual
from leadline.nn.roles import RoleWeight, fill_branch_
from leadline.nn.scheme import Scheme, check_depth
from leadline.nn.schemes import find_scheme
from leadline.nn.streams import make_scheme_norm, make_stream_end, open_stream
from leadline.nn.uninitialized import make_linear


class DenseBranch(nn.Module):
    r"""$W_2\,\phi(W_1 x + b_1) + b_2$; it ends in a linear map, so that its output has mean zero at initialization.

    A branch that ends in its activation has a mean, and the means of all branches add up coherently: the
    stream then grows like depth squared instead of depth.
    """

    def __init__(self, width: int, activation: str | Activation) -> None:
        super().__init__()
        self.width, self.activation = width, activation
        self.fc1 = make_linear(width, width, bias=True)
        self.fc2 = make_linear(width, width, bias=True)
        self._function = find_activation(activation)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc2(self._function(self.fc1(x)))
        return y

    def role_weights(self) -> list[RoleWeight]:
        fed = gaussian_moments(self.activation).square
        return [
            RoleWeight(role="fc1", weight=self.fc1.weight),
            RoleWeight(role="fc2", weight=self.fc2.weight, second_moment=fed),
        ]


class PlainLayer(nn.Module):
    r"""$\phi(Wx + b)$: a layer of a plain stack, initialized at the critical point of $\phi$ (see `init.critical`)."""

    def __init__(
        self, width: int, activation: str | Activation, *, generator: Generator | None = None
    ) -> None:
        super().__init__()
        self.width = width
        self.fc1 = make_linear(width, width, bias=True)
        self._function = find_activation(activation)
        point = init.critical(activation)
        init.normal_(self.fc1.weight, point.weight_variance / width, generator=generator)
        init.normal_(self.fc1.bias, point.bias_variance, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        return self._function(self.fc1(x))

    def role_weights(self) -> list[RoleWeight]:
        return [RoleWeight(role="fc1", weight=self.fc1.weight)]


class MLP(nn.Module):
    """A multilayer perceptron from (..., inputs) to (..., outputs) with `depth` residual blocks of `width`.

    A residual block is one sub-layer: an activation between two linear maps. With scheme `none` the blocks are plain
    layers. `scheme=None` uses `recommended(depth)`.
    """

    def __init__(  # noqa: PLR0913  (the names of the public contract, and a generator)
        self,
        inputs: int,
        width: int,
        depth: int,
        outputs: int,
        *,
        scheme: str | Scheme | None = None,
        activation: str | Activation = "relu",
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        check_depth(depth)
        self.scheme = find_scheme(scheme, depth)
        self.input = make_linear(inputs, width, bias=True)
        self.blocks = nn.ModuleList(self._block(i, width, depth, activation, generator) for i in range(depth))
        make_norm = make_scheme_norm(self.scheme, nn.LayerNorm)
        self.stream_end = make_stream_end(self.scheme, width, make_norm)
        self.final_norm = make_norm(width) if self.scheme.final_norm else None
        self.output = make_linear(width, outputs, bias=True)
        self._fill_ends(generator)

    def _block(
        self, index: int, width: int, depth: int, activation: str | Activation, generator: Generator | None
    ) -> Residual:
        branch: nn.Module
        if self.scheme.has_skip:
            branch = DenseBranch(width, activation)
            fill_branch_(branch, self.scheme.base, generator=generator)
        else:
            branch = PlainLayer(width, activation, generator=generator)
        return Residual(branch, scheme=self.scheme, index=index, depth=depth)

    def _fill_ends(self, generator: Generator | None) -> None:
        for layer in (self.input, self.output):
            init.normal_(layer.weight, init.lecun(*init.fans(layer.weight)), generator=generator)
            nn.init.zeros_(layer.bias)
        if self.scheme.zero_head:
            nn.init.zeros_(self.output.weight)

    def forward(self, x: Tensor) -> Tensor:
        state = open_stream(self.scheme, self.input(x))
        for block in self.blocks:
            state = block(state)
        stream: Any = state if self.stream_end is None else self.stream_end(state)
        y: Tensor = self.output(stream if self.final_norm is None else self.final_norm(stream))
        return y
