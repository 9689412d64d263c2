"""One network after the other with `nn.Sequential`, autograd and `torch.optim.SGD`: the obvious way."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.lab.fleet.plan import Net, Task, draw
from leadline.lab.fleet.slopes import SLOPES


class Activate(nn.Module):
    """The activation of that name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = SLOPES[name].forward

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Skip(nn.Module):
    r"""$k\,z + s\,(W\phi(z) + b)$."""

    def __init__(self, branch: nn.Module, skip: float, scale: float) -> None:
        super().__init__()
        self.branch, self.skip, self.scale = branch, skip, scale

    def forward(self, z: Tensor) -> Tensor:
        y: Tensor = self.branch(z)
        return self.skip * z + self.scale * y


def build_alone(net: Net, task: Task) -> nn.Sequential:
    """The network as anybody would write it, with the weights the fleet gives it."""
    weights = draw(net, task)
    model = nn.Sequential(_linear(weights.first, weights.first_bias))
    for matrix, bias in zip(weights.square, weights.square_bias, strict=True):
        layer = (Activate(net.activation), _linear(matrix, bias))
        model.extend(layer if (net.skip, net.scale) == (0, 1) else [_residual(layer, net)])
    return model.extend([Activate(net.activation), _linear(weights.last, weights.last_bias)])


def train_alone(nets: Sequence[Net], task: Task) -> Tensor:
    """Loss of each network (rows) at each step, before the step."""
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
    return Skip(nn.Sequential(*layer), net.skip, net.scale)


def _linear(matrix: Tensor, bias: Tensor) -> nn.Linear:
    inputs, outputs = matrix.shape
    layer = nn.Linear(inputs, outputs, dtype=matrix.dtype)
    with torch.no_grad():
        layer.weight.copy_(matrix.T)
        layer.bias.copy_(bias)
    return layer
