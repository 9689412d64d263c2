"""Cases whose model fails on purpose in its forward pass, its loss or its backward pass."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch._dynamo import OptimizedModule

from leadline import Case
from tests.support.zoo import Specimen
from tests.support.zoo.plain_run import call


class UserError(Exception):
    """The user's own error."""


class RaiseInBackward(torch.autograd.Function):
    """The identity, whose backward raises `error`."""

    @staticmethod
    def forward(ctx, x: Tensor, error: BaseException) -> Tensor:
        ctx.error = error
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        raise ctx.error


def in_forward(specimen: Specimen, error: BaseException, *, at: float) -> Case:
    """Return its case, which fails when the pass has called a fraction `at` of its modules."""
    called, case = _called_modules(specimen), specimen()

    def raise_error(module: nn.Module, args: object) -> None:
        raise error

    _module_at(case, called[round(at * (len(called) - 1))][0]).register_forward_pre_hook(raise_error)
    return case


def in_loss(specimen: Specimen, error: BaseException) -> Case:
    def loss(*_: object) -> Tensor:
        raise error

    return replace(specimen(), loss=loss)


def in_backward(specimen: Specimen, error: BaseException) -> Case:
    """Return its case, which fails in the middle of the backward pass."""
    case = specimen()
    paths = [
        path
        for path, output in _called_modules(specimen)
        if isinstance(output, Tensor) and output.requires_grad
    ]
    if paths:
        middle = _module_at(case, paths[len(paths) // 2])
        middle.register_forward_hook(lambda module, args, output: RaiseInBackward.apply(output, error))
        return case
    loss = case.loss
    return replace(case, loss=lambda *args: RaiseInBackward.apply(loss(*args), error))


def _called_modules(specimen: Specimen) -> list[tuple[str, object]]:
    """Paths and outputs of the modules that a pass calls, in the order in which they return."""
    case, called = specimen(), []
    for path, module in case.model.named_modules():
        if not isinstance(
            module, torch.jit.ScriptModule | OptimizedModule
        ):  # the first refuses hooks, the second is unwrapped
            module.register_forward_hook(lambda _, args, output, path=path: called.append((path, output)))
    with torch.compiler.set_stance("force_eager"):
        call(case)
    return called


def _module_at(case: Case, path: str) -> nn.Module:
    return dict(case.model.named_modules())[path]
