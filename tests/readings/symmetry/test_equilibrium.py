"""Norm and rotation in equilibrium, by formula and by simulating the optimizer on a scale-invariant weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from leadline.readings.symmetry.equilibrium import equilibrium
from leadline.records import ParamGroup

COUNT = 400  # elements: what is neglected is of the order of one over this
CLOSE = 0.05  # of order eta lambda, plus the spread of an average over a thousand steps

Step = Callable[[Tensor, Tensor], Tensor]


def sgd(rate: float, decay: float, momentum: float) -> Step:
    kept = torch.zeros(COUNT)

    def step(w: Tensor, g: Tensor) -> Tensor:
        kept.mul_(momentum).add_(g + decay * w)
        return w - rate * kept

    return step


def adam(rate: float, decay: float, betas: tuple[float, float], *, decoupled: bool) -> Step:
    mean, square, steps = torch.zeros(COUNT), torch.zeros(COUNT), [0]

    def step(w: Tensor, g: Tensor) -> Tensor:
        steps[0] += 1
        g = g if decoupled else g + decay * w
        mean.lerp_(g, 1 - betas[0])
        square.lerp_(g * g, 1 - betas[1])
        fair = (square / (1 - betas[1] ** steps[0])).sqrt()
        w = w * (1 - rate * decay) if decoupled else w
        return w - rate * mean / (1 - betas[0] ** steps[0]) / fair

    return step


def lion(rate: float, decay: float, betas: tuple[float, float]) -> Step:
    kept = torch.zeros(COUNT)

    def step(w: Tensor, g: Tensor) -> Tensor:
        move = (betas[0] * kept + (1 - betas[0]) * g).sign()
        kept.lerp_(g, 1 - betas[1])
        return w - rate * (move + decay * w)

    return step


def simulate(step: Step, norm: float, radius: float, steps: int) -> tuple[float, float]:
    """Mean norm and root mean square angle over the second half of a run that starts at `norm`."""
    draw = torch.Generator().manual_seed(3)
    w = torch.randn(COUNT, generator=draw)
    w *= norm / w.norm()
    norms, angles = [], []
    for index in range(steps):
        noise = torch.randn(COUNT, generator=draw)
        noise -= w * (noise @ w) / (w @ w)
        before, w = w, step(w, radius * noise / noise.norm() / w.norm())
        if index >= steps // 2:
            norms.append(w.norm().item())
            angles.append(1 - (before @ w / (before.norm() * w.norm())).item())
    return sum(norms) / len(norms), math.sqrt(2 * sum(angles) / len(angles))


def cases() -> Iterator[tuple[str, str, Step, dict[str, object], float, float]]:
    betas = (0.9, 0.99)
    for rate, decay, momentum in ((0.1, 0.05, 0.0), (0.05, 0.1, 0.0), (0.02, 0.02, 0.9)):
        yield f"SGD-{momentum}-{rate}", "SGD", sgd(rate, decay, momentum), {"momentum": momentum}, rate, decay
    yield "AdamW", "AdamW", adam(0.02, 0.2, betas, decoupled=True), {"betas": list(betas)}, 0.02, 0.2
    yield "Adam", "Adam", adam(0.02, 0.01, betas, decoupled=False), {"betas": list(betas)}, 0.02, 0.01
    short = (
        0.9,
        0.95,
    )  # the formulas hold if the memory, 1 / (1 - beta), is short compared with 1 / (rate x decay)
    yield "Lion", "Lion", lion(0.01, 0.2, short), {"betas": list(short)}, 0.01, 0.2


@pytest.mark.parametrize(
    ("optimizer", "step", "options", "rate", "decay"),
    [pytest.param(*case, id=name) for name, *case in cases()],
)
def test_norm_and_angle_are_those_of_the_simulated_optimizer(optimizer, step, options, rate, decay):
    group = ParamGroup(parameters=("w",), lr=rate, weight_decay=decay, options=options)
    radius = 0.7
    found = equilibrium(optimizer, group, count=COUNT, radius=radius)
    norm, angle = simulate(step, found.norm, radius, steps=3000)
    assert norm == pytest.approx(found.norm, rel=CLOSE)
    assert angle == pytest.approx(found.angle, rel=CLOSE)


def test_the_balance_is_reached_in_about_one_over_rate_times_decay_steps():
    rate, decay = 0.02, 0.2
    group = ParamGroup(parameters=("w",), lr=rate, weight_decay=decay, options={"betas": [0.9, 0.99]})
    found = equilibrium("AdamW", group, count=COUNT, radius=1.0)
    step = adam(rate, decay, (0.9, 0.99), decoupled=True)
    far, _ = simulate(step, 10 * found.norm, 1.0, steps=20)
    near, _ = simulate(step, 10 * found.norm, 1.0, steps=int(5 * found.steps))
    assert far > 5 * found.norm
    assert near == pytest.approx(found.norm, rel=0.2)


@pytest.mark.parametrize(
    ("name", "rate", "decay"), [("Shampoo", 0.1, 0.1), ("AdamW", 0.1, 0.0), ("SGD", None, 0.1)]
)
def test_an_unknown_optimizer_or_a_zero_rate_has_no_equilibrium(name, rate, decay):
    group = ParamGroup(parameters=("w",), lr=rate, weight_decay=decay, options={})
    assert equilibrium(name, group, count=COUNT, radius=1.0) is None


@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_coupled_decay_has_no_equilibrium_without_a_gradient(name: str):
    group = ParamGroup(parameters=("w",), lr=0.1, weight_decay=0.1, options={"betas": [0.9, 0.99]})
    assert equilibrium(name, group, count=10, radius=None) is None
    assert equilibrium(name, group, count=10, radius=1.0) is not None


def test_an_unknown_optimizer_has_no_equilibrium():
    group = ParamGroup(parameters=("w",), lr=0.1, weight_decay=0.1, options={})
    assert equilibrium("Unheard", group, count=10, radius=1.0) is None
