"""The networks of a fleet, their task and initial weights, and the plain loop that trains them one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.errors import InputError

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetActivation:
    """An activation $y = \\phi(z)$ with its derivative, for the hand-written backward pass."""

    forward: Callable[[Tensor], Tensor]
    """Maps z to y."""
    backward: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Maps (gradient of y, z, y) to the gradient of z, in place of its first argument."""
    in_place: Callable[[Tensor], Tensor] | None = None
    """`forward` in place of z, if the backward pass does not need z; this saves memory traffic."""


ACTIVATIONS: Mapping[str, FleetActivation] = MappingProxyType(
    {
        "linear": FleetActivation(forward=lambda z: z, backward=lambda g, z, y: g),
        "relu": FleetActivation(
            forward=torch.relu,
            in_place=torch.relu_,
            backward=lambda g, z, y: aten.threshold_backward.grad_input(g, y, 0, grad_input=g),
        ),
        "tanh": FleetActivation(
            forward=torch.tanh,
            in_place=torch.tanh_,
            backward=lambda g, z, y: aten.tanh_backward.grad_input(g, y, grad_input=g),
        ),
        "sigmoid": FleetActivation(
            forward=torch.sigmoid,
            in_place=torch.sigmoid_,
            backward=lambda g, z, y: aten.sigmoid_backward.grad_input(g, y, grad_input=g),
        ),
        "gelu": FleetActivation(
            forward=F.gelu, backward=lambda g, z, y: aten.gelu_backward.grad_input(g, z, grad_input=g)
        ),
        "silu": FleetActivation(
            forward=F.silu, backward=lambda g, z, y: aten.silu_backward.grad_input(g, z, grad_input=g)
        ),
    }
)


# The networks, their common task, and their initial weights.


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    r"""One MLP: $z_0 = W_{in} x + b_{in}$, then `depth` square layers, then $W_{out}\,\phi(z_L) + b_{out}$.

    A square layer is $z_{l+1} = k\,z_l + s\,(W_l\,\phi(z_l) + b_l)$ with $k$ = `skip` and $s$ = `scale`: the network is
    plain for $k = 0$, $s = 1$ and residual for $k = 1$. Square weights are drawn from $N(0, g/n)$ and their
    biases from $N(0, v)$, $g$ = `gain`, $v$ = `bias`, $n$ the width; the first layer likewise (its gain over its own
    inputs), the last one from $N(0, 1/n)$ without a bias. `rate` is the learning rate of plain SGD.
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
                fix="change these values; depth counts the square layers between the first and the last layer",
            )
        if self.activation not in ACTIVATIONS:
            raise InputError(
                expected="activation: one of " + ", ".join(ACTIVATIONS),
                got=f"activation={self.activation!r}",
                fix="choose one of these",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The samples, their classes, and the batch of each step, which are the same for every network."""

    inputs: Tensor
    """(samples, features)."""
    targets: Tensor
    """(samples,): class numbers, starting at 0."""
    batches: Tensor
    """(steps, batch): the indices of the samples of each step."""
    width: int

    @property
    def classes(self) -> int:
        return int(self.targets.max()) + 1

    @property
    def batch(self) -> int:
        return self.batches.shape[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetWeights:
    """The weights of one network. Matrices are (inputs, outputs), so that a batch is multiplied from the left."""

    first: Tensor
    first_bias: Tensor
    square: Tensor
    """(depth, width, width)."""
    square_bias: Tensor
    last: Tensor
    last_bias: Tensor


def draw_weights(net: Net, task: Task) -> NetWeights:
    """Draw the initial weights. They depend only on the network and its seed, not on the rest of the fleet."""
    generator = torch.Generator().manual_seed(net.seed)
    features, n, classes, dtype = task.inputs.shape[1], task.width, task.classes, task.inputs.dtype

    def normal(*shape: int, variance: float) -> Tensor:
        return math.sqrt(variance) * torch.randn(*shape, generator=generator, dtype=dtype)

    return NetWeights(
        first=normal(features, n, variance=net.gain / features),
        first_bias=normal(n, variance=net.bias),
        square=normal(net.depth, n, n, variance=net.gain / n),
        square_bias=normal(net.depth, n, variance=net.bias),
        last=normal(n, classes, variance=1 / n),
        last_bias=torch.zeros(classes, dtype=dtype),
    )


# The plain loop for comparison: one network after the other with `nn.Sequential`, autograd and `torch.optim.SGD`.


class ActivationModule(nn.Module):
    """The activation with this name, as a module."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = ACTIVATIONS[name].forward

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class ScaledSkip(nn.Module):
    r"""$k\,z + s\,(W\phi(z) + b)$."""

    def __init__(self, branch: nn.Module, skip: float, scale: float) -> None:
        super().__init__()
        self.branch, self.skip, self.scale = branch, skip, scale

    def forward(self, z: Tensor) -> Tensor:
        y: Tensor = self.branch(z)
        return self.skip * z + self.scale * y


def build_alone(net: Net, task: Task) -> nn.Sequential:
    """Build the network as an `nn.Sequential` with the same weights as in the fleet."""
    weights = draw_weights(net, task)
    model = nn.Sequential(_linear(weights.first, weights.first_bias))
    for matrix, bias in zip(weights.square, weights.square_bias, strict=True):
        layer = (ActivationModule(net.activation), _linear(matrix, bias))
        model.extend(layer if (net.skip, net.scale) == (0, 1) else [_residual(layer, net)])
    return model.extend([ActivationModule(net.activation), _linear(weights.last, weights.last_bias)])


def train_alone(nets: Sequence[Net], task: Task) -> Tensor:
    """Train the networks one by one. Return (networks, steps): the loss before each step."""
    return torch.stack([_train(net, task) for net in nets])


def _train(net: Net, task: Task) -> Tensor:
    model = build_alone(net, task)
    optimizer = torch.optim.SGD(model.parameters(), lr=net.rate)
    losses = []
    for batch in task.batches:
        loss = F.cross_entropy(model(task.inputs[batch]), task.targets[batch])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def _residual(layer: Sequence[nn.Module], net: Net) -> nn.Module:
    return ScaledSkip(nn.Sequential(*layer), net.skip, net.scale)


def _linear(matrix: Tensor, bias: Tensor) -> nn.Linear:
    inputs, outputs = matrix.shape
    layer = nn.Linear(inputs, outputs, dtype=matrix.dtype)
    with torch.no_grad():
        layer.weight.copy_(matrix.T)
        layer.bias.copy_(bias)
    return layer
