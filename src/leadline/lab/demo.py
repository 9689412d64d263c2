"""The networks of `leadline demo`: 60 layers that do not train, and a healthy counterpart.

Weights come from PyTorch's global random generator, as in any model: seed it to get the same network again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import process_time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.case import Case
from leadline.fixes._engine.repair import apply_recipe
from leadline.fixes._engine.trial import train_step
from leadline.records import Recipe, Trial

# Heuristic: a depth at which the default initialization stops the signal, and data that a good one learns in a minute.
LAYERS = 60
WIDTH = 64
POINTS = 256
DATA_SEED = 0
# Heuristic: seconds of processor time for one of the two trainings; 300 steps take about five.
MAX_TRAINING_SECONDS = 20.0
TURNS = 1.5
# Heuristic: at 1e-3 the loss of sixty plain layers jumps up now and then even with a good initialization.
PLAIN_RATE = 3e-4
# Derived: the default of torch.optim.Adam, which the residual networks tolerate.
RESIDUAL_RATE = 1e-3


def deep_mlp() -> Case:
    r"""Return sixty plain ReLU layers with PyTorch's default initialization; the gradient never reaches the first one.

    `nn.Linear` draws its weights with variance $\sigma_w^2 / n$ where $\sigma_w^2 = 1/3$, and a ReLU passes the
    gradient at half of its units, so each layer multiplies the squared gradient by $\chi = \sigma_w^2 / 2 = 1/6$.
    """
    model = nn.Sequential()
    for number in range(1, LAYERS):
        model.add_module(f"layer_{number}", nn.Linear(2 if number == 1 else WIDTH, WIDTH))
        model.add_module(f"relu_{number}", nn.ReLU())
    model.add_module("head", nn.Linear(WIDTH, 2))
    return _spiral_case(model)


def residual_mlp() -> Case:
    r"""Return a network as deep and wide as `deep_mlp` whose layers are scaled by $1/\sqrt{N}$ and added to a skip.

    With He's initialization each of the $N$ branches adds $1/N$ of the stream's second moment, forward and backward, so
    both grow by about $(1 + 1/N)^N < e$ over the whole depth.
    """
    model = nn.Sequential()
    model.add_module("layer_1", nn.Linear(2, WIDTH))
    for number in range(2, LAYERS):
        model.add_module(f"layer_{number}", ResidualLayer(WIDTH, scale=1 / math.sqrt(LAYERS - 2)))
    model.add_module("head", nn.Linear(WIDTH, 2))
    return _spiral_case(model, rate=RESIDUAL_RATE)


def residual_family(depth: int) -> Case:
    r"""Return `residual_mlp` at any depth: branches scaled by $1/\sqrt{N}$, which suits SGD, but trained with Adam."""
    model = nn.Sequential()
    model.add_module("first", nn.Linear(2, WIDTH))
    for number in range(depth):
        model.add_module(f"layer_{number}", ResidualLayer(WIDTH, scale=1 / math.sqrt(depth)))
    model.add_module("head", nn.Linear(WIDTH, 2))
    return _spiral_case(model, rate=RESIDUAL_RATE)


class ResidualLayer(nn.Module):
    r"""$y = x + s\,W\,\mathrm{relu}(x)$ with $W \sim N(0, 2/n)$, which makes up for the half that a ReLU removes."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.scale = scale
        nn.init.kaiming_normal_(self.linear.weight, nonlinearity="relu")
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.linear(F.relu(x))
        return x + self.scale * branch


def two_spirals(points: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return `points` points in the plane, and for each the spiral (0 or 1) on which it lies."""
    labels = torch.arange(points) % 2
    progress = torch.rand(points, generator=generator).sqrt()
    angle = 2 * math.pi * TURNS * progress + math.pi * labels
    plane = progress[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)
    return 2 * plane + 0.02 * torch.randn(points, 2, generator=generator), labels


def compare_training(
    recipe: Recipe,
    steps: int,
    progress: Callable[[int, int, str], object] | None = None,
    clock: Callable[[], float] = process_time,
) -> tuple[Trial, tuple[float, float]]:
    """Train `deep_mlp` before and after the recipe. Return both loss curves and the share of points each gets right.

    Both make the same number of steps: as many as asked for, or as the first makes in `MAX_TRAINING_SECONDS`.
    """
    runs = []
    deadline = clock() + MAX_TRAINING_SECONDS
    for label, edits in (("training the untreated network", None), ("training the repaired network", recipe)):
        torch.manual_seed(0)
        case = deep_mlp()
        if edits is not None:
            apply_recipe(case.model, edits, case.optimizer)
        losses: list[float] = []
        for step in range(steps):
            if edits is None and losses and clock() > deadline:
                steps = step
                break
            if progress is not None:
                progress(step, steps, label)
            losses.append(train_step(case, (case.inputs, case.targets)))
        with torch.no_grad():
            right = (case.model(case.inputs).argmax(1) == case.targets).float().mean().item()
        runs.append((tuple(losses), right))
    (untreated, before), (treated, after) = runs
    return Trial(untreated=untreated, treated=treated, fresh=False), (before, after)


def _spiral_case(model: nn.Module, rate: float = PLAIN_RATE) -> Case:
    inputs, targets = two_spirals(POINTS, torch.Generator().manual_seed(DATA_SEED))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    return Case(model, inputs, targets, loss=F.cross_entropy, optimizer=optimizer)
