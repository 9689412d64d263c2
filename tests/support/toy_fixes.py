"""A network that a toy fix repairs, and toy fixes: one helps, the others do not."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from leadline import Case
from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.records import Edit

GAIN = 6**0.5


class Clock:
    """A clock that advances by one tick per call."""

    def __init__(self, tick: float = 1.0) -> None:
        self.now, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


def deep(layers: int = 20, width: int = 24, *, optimizer: bool = True) -> Case:
    """A ReLU network that is too deep for PyTorch's default initialization."""
    torch.manual_seed(0)
    stack = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*stack, nn.Linear(width, 4))
    adam = torch.optim.Adam(model.parameters(), lr=1e-3) if optimizer else None
    inputs, targets = torch.randn(32, width), torch.randint(4, (32,))
    return Case(model, inputs, targets, nn.functional.cross_entropy, adam)


def healthy() -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    return Case(model, torch.randn(32, 8), torch.randint(4, (32,)), nn.functional.cross_entropy, adam)


def scaled(context: FixContext, factor: float) -> tuple[Edit, ...]:
    matrices = [name for name, value in context.case.model.named_parameters() if value.dim() == 2]
    return tuple(Edit(action="scale", where=name, options={"factor": factor}) for name in matrices)


@fix(name="toy-gain", answers=("I", "B"), reach="init", since="0.1.0")
def toy_gain(context: FixContext) -> Iterator[Plan]:
    """Scales the weights to the gain that a ReLU needs."""
    yield Plan(title="weights times 2.45", edits=scaled(context, GAIN), promise=0.9)


@fix(name="toy-lie", answers=("I", "B"), reach="function", since="0.1.0")
def toy_lie(context: FixContext) -> Iterator[Plan]:
    """Claims to keep the function, and does not."""
    yield Plan(title="weights times 2.45, unseen", edits=scaled(context, GAIN))


@fix(name="toy-placebo", answers=("I", "B"), reach="recipe", since="0.1.0")
def toy_placebo(context: FixContext) -> Iterator[Plan]:
    """Changes nothing that matters."""
    yield Plan(title="a rate that is 1 % lower", edits=(Edit(action="rate", options={"factor": 0.99}),))


@fix(name="toy-stop", answers=("I", "B"), reach="init", since="0.1.0")
def toy_stop(context: FixContext) -> Iterator[Plan]:
    """Removes the finding and, with it, all learning: a healthy signal at a rate near zero."""
    edits = (*scaled(context, GAIN), Edit(action="rate", options={"factor": 1e-6}))
    yield Plan(title="weights times 2.45 and no learning", edits=edits, promise=1.0)


@fix(name="toy-mistake", answers=("I", "B"), reach="recipe", since="0.1.0")
def toy_mistake(context: FixContext) -> Iterator[Plan]:
    """Names a parameter that does not exist."""
    yield Plan(title="nowhere", edits=(Edit(action="scale", where="nowhere", options={"factor": 2.0}),))


@fix(name="toy-advice", answers=("I", "B"), reach="advice", since="0.1.0")
def toy_advice(context: FixContext) -> Iterator[Plan]:
    """Says what to do."""
    yield Plan(title="use a shallower network", code="# fewer layers")


TOYS = (toy_gain, toy_lie, toy_placebo, toy_mistake, toy_advice)


@fix(name="toy-slow", answers=("U",), reach="recipe", since="0.1.0")
def toy_slow(context: FixContext) -> Iterator[Plan]:
    """Divides the rate by a thousand."""
    yield Plan(title="rate times 0.001", edits=(Edit(action="rate", options={"factor": 1e-3}),))
