"""Making a user's model fail on purpose, in its forward, its loss or its backward pass."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch._dynamo import OptimizedModule

from leadline import Case
from tests.support.zoo import Specimen
from tests.support.zoo.plain_run import call


class AccidentError(Exception):
    """The user's own error."""


class Tripwire(torch.autograd.Function):
    """The identity, whose backward raises `accident`."""

    @staticmethod
    def forward(ctx, x: Tensor, accident: BaseException) -> Tensor:
        ctx.accident = accident
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        raise ctx.accident


def in_forward(animal: Specimen, accident: BaseException, *, at: float) -> Case:
    """Its case, failing when it enters the module a fraction `at` of the way through the pass."""
    called, case = _called(animal), animal()

    def trip(module: nn.Module, args: object) -> None:
        raise accident

    _part(case, called[round(at * (len(called) - 1))][0]).register_forward_pre_hook(trip)
    return case


def in_loss(animal: Specimen, accident: BaseException) -> Case:
    def loss(*_: object) -> Tensor:
        raise accident

    return replace(animal(), loss=loss)


def in_backward(animal: Specimen, accident: BaseException) -> Case:
    """Its case, failing halfway through the backward pass, behind the middle one of its modules."""
    case = animal()
    paths = [path for path, output in _called(animal) if isinstance(output, Tensor) and output.requires_grad]
    if paths:
        middle = _part(case, paths[len(paths) // 2])
        middle.register_forward_hook(lambda module, args, output: Tripwire.apply(output, accident))
        return case
    loss = case.loss
    return replace(case, loss=lambda *args: Tripwire.apply(loss(*args), accident))


def _called(animal: Specimen) -> list[tuple[str, object]]:
    """Paths and outputs of the modules that a pass calls, in the order in which they return."""
    case, called = animal(), []
    for path, module in case.model.named_modules():
        if not isinstance(
            module, torch.jit.ScriptModule | OptimizedModule
        ):  # one refuses hooks, one is unwrapped
            module.register_forward_hook(lambda _, args, output, path=path: called.append((path, output)))
    with torch.compiler.set_stance("force_eager"):
        call(case)
    return called


def _part(case: Case, path: str) -> nn.Module:
    return dict(case.model.named_modules())[path]
