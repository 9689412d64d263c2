"""Measurements that several experiments make, taken by Leadline's own trace and update."""

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
    """Second moments at one place of a stack: of the signal, and of the gradient that comes back."""

    forward: float
    backward: float


class InputProbe(nn.Module):
    """A place in front of the first layer, at which a trace can read the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones((), dtype=DOUBLE))  # so that a gradient comes here at all

    def forward(self, x: Tensor) -> Tensor:
        return x * self.one


def moments_through(
    layers: Sequence[nn.Module], x: Tensor, cotangent: Tensor | None = None
) -> list[StackMoments]:
    """In front of the first layer and behind each, with a random gradient of unit second moment sent back.

    No module may be part of two layers: a trace knows it by one path.
    """
    model = nn.Sequential(InputProbe(), *layers)

    def loss(y: Tensor) -> Tensor:
        return (y * (torch.randn_like(y) if cotangent is None else cotangent)).sum()

    with torch.random.fork_rng(devices=[]):
        seen = trace(model, x, loss=loss, theory=False)
    return [_point(seen, str(place)) for place in range(len(model))]


def _point(seen: Trace, path: str) -> StackMoments:
    """At the last value that the module of this path, or one inside of it, wrote."""
    inside = [op for op in seen.ops if op.module == path or op.module.startswith(f"{path}.")]
    value = seen.values[inside[-1].outputs[0]]
    forward, backward = value.forward, value.backward
    return StackMoments(
        forward=float("nan") if forward is None else forward.ms,
        backward=float("nan") if backward is None else backward.ms,
    )


def growth(points: Sequence[StackMoments]) -> tuple[float, float]:
    """Second moment at the end over that at the start, forward; and the same of the gradient, which runs back."""
    return points[-1].forward / points[0].forward, points[0].backward / points[-1].backward


def layer_gains(points: Sequence[StackMoments]) -> tuple[list[float], list[float]]:
    """Gain of every layer by itself, forward and backward."""
    ahead = [after.forward / before.forward for before, after in pairwise(points)]
    back = [before.backward / after.backward for before, after in pairwise(points)]
    return ahead, back


def gradients(model: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Of the loss, by name of the trainable parameter."""
    named = {name: each for name, each in model.named_parameters() if each.requires_grad}
    found = torch.autograd.grad(loss(model(x)), list(named.values()))
    return dict(zip(named, found, strict=True))


def square_sum(found: dict[str, Tensor]) -> float:
    r"""$\sum_l \lVert g_l \rVert_F^2$."""
    return sum(each.square().sum().item() for each in found.values())


def absolute_sum(found: dict[str, Tensor]) -> float:
    r"""$\lVert g \rVert_1$: what a step along the signs lowers the loss by, over the rate."""
    return sum(each.abs().sum().item() for each in found.values())


def sgd_step(model: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor], rate: float) -> Update:
    """A step of SGD, measured and undone."""
    sgd = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=rate)
    return update(Case(model, x, loss=loss, optimizer=sgd))


def relative_change(before: Tensor, after: Tensor) -> float:
    """Length of the difference over length of what was there before."""
    return float(((after - before).norm() / before.norm()).item())
