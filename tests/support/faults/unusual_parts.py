"""What programs that are unusual in one respect are made of; `unusual_programs` has all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from leadline import Case
from leadline.tracer.inputs import call_model, find_loss

Program = Callable[[], Case]
PROGRAMS: dict[str, Program] = {}
"""By name: a function that builds the model, its batch, its loss and its optimizer."""


def program(build: Program) -> Program:
    PROGRAMS[build.__name__] = build
    return build


def mean_square(output: Tensor, targets: Tensor | None = None) -> Tensor:
    output = output if targets is None else output - targets
    return (output.abs() if output.is_complex() else output).square().mean()


def batch() -> Tensor:
    return torch.randn(8, 6)


def mlp(*middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), *middle, nn.Linear(8, 3))


def case(model: nn.Module, inputs: Any = None, loss: Any = mean_square, targets: Any = None) -> Case:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return Case(model, batch() if inputs is None else inputs, targets, loss, optimizer)


class Around(nn.Module):
    """A perceptron with something done to its hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def hidden(self, x: Tensor) -> Tensor:
        return torch.relu(x)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.hidden(self.first(x)))


def replace_optimizer(made: Case, optimizer: Any) -> Case:
    return Case(made.model, made.inputs, made.targets, made.loss, optimizer)


def train(made: Case, seen: Callable[[Tensor], Tensor] = lambda loss: loss) -> None:
    """Make three steps as plain PyTorch does; `seen` is shown each loss."""

    def closure() -> Tensor:
        for each in made.optimizers:
            each.zero_grad()
        loss = seen(find_loss(call_model(made.model, made.inputs), made.loss, made.targets))
        loss.backward()
        return loss

    for _ in range(3):
        if any(isinstance(each, torch.optim.LBFGS) for each in made.optimizers):
            made.optimizers[0].step(closure)
            continue
        closure()
        for each in made.optimizers:
            each.step()


def build(name: str) -> Case:
    torch.manual_seed(0)
    return PROGRAMS[name]()
