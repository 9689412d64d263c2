"""Measurements that several claims share, made with Leadline's own trace and update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from leadline.api import trace, update
from leadline.case import Case
from leadline.records import Trace, Update

DOUBLE = torch.float64


@dataclass(frozen=True, slots=True, kw_only=True)
class StackMoments:
    """Second moments of the signal and of the gradient at one position of a stack."""

    forward: float
    backward: float


class InputProbe(nn.Module):
    """A multiplication by one before the first layer, so that a trace can read the gradient there."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(
            torch.ones((), dtype=DOUBLE)
        )  # without a parameter no gradient is computed here

    def forward(self, x: Tensor) -> Tensor:
        return x * self.one


def moments_through(
    layers: Sequence[nn.Module], x: Tensor, cotangent: Tensor | None = None
) -> list[StackMoments]:
    """Return the moments before the first layer and after each layer, for a random gradient of unit second moment.

    No module may be part of two layers, because a trace knows a module by one path.
    """
    model = nn.Sequential(InputProbe(), *layers)

    def loss(y: Tensor) -> Tensor:
        return (y * (torch.randn_like(y) if cotangent is None else cotangent)).sum()

    with torch.random.fork_rng(devices=[]):
        recorded = trace(model, x, loss=loss, theory=False)
    return [_moments_at(recorded, str(position)) for position in range(len(model))]


def _moments_at(recorded: Trace, path: str) -> StackMoments:
    """Return the moments of the last value that the module at this path, or one inside it, wrote."""
    inside = [op for op in recorded.ops if op.module == path or op.module.startswith(f"{path}.")]
    value = recorded.values[inside[-1].outputs[0]]
    forward, backward = value.forward, value.backward
    return StackMoments(
        forward=float("nan") if forward is None else forward.ms,
        backward=float("nan") if backward is None else backward.ms,
    )


def growth(points: Sequence[StackMoments]) -> tuple[float, float]:
    """Return the growth of the second moment from start to end, and that of the gradient from end to start."""
    return points[-1].forward / points[0].forward, points[0].backward / points[-1].backward


def layer_gains(points: Sequence[StackMoments]) -> tuple[list[float], list[float]]:
    """Return the gain of each layer, forward and backward."""
    forward = [after.forward / before.forward for before, after in pairwise(points)]
    backward = [before.backward / after.backward for before, after in pairwise(points)]
    return forward, backward


def gradients(model: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Return the gradients of the loss, by the name of the trainable parameter."""
    named = {name: each for name, each in model.named_parameters() if each.requires_grad}
    values = torch.autograd.grad(loss(model(x)), list(named.values()))
    return dict(zip(named, values, strict=True))


def square_sum(gradients: dict[str, Tensor]) -> float:
    r"""Return $\sum_l \lVert g_l \rVert_F^2$."""
    return sum(each.square().sum().item() for each in gradients.values())


def absolute_sum(gradients: dict[str, Tensor]) -> float:
    r"""Return $\lVert g \rVert_1$: how much a sign step lowers the loss, divided by the learning rate."""
    return sum(each.abs().sum().item() for each in gradients.values())


def sgd_step(model: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor], rate: float) -> Update:
    """Measure one step of SGD; the model is restored afterwards."""
    sgd = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=rate)
    return update(Case(model, x, loss=loss, optimizer=sgd))


def relative_change(before: Tensor, after: Tensor) -> float:
    """Return the norm of the difference, divided by the norm of `before`."""
    return float(((after - before).norm() / before.norm()).item())
