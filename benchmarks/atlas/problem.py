"""What a family builds and a flaw changes: model, data, loss and optimizer of one training problem."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import leadline

Kind = Literal["classes", "numbers", "own"]
Half = Literal["calibration", "held out"]


class Batch(NamedTuple):
    """Positional arguments of the model, and the targets."""

    inputs: tuple[Tensor, ...]
    targets: Tensor | None = None


Draw = Callable[[torch.Generator], Batch]
Loss = Callable[..., Tensor]


@dataclass(slots=True)
class Recipe:
    """Which optimizer trains, with which options, and which parameters it gets."""

    name: str = "adam"
    lr: float = 3e-3
    options: dict[str, Any] = field(default_factory=dict)
    choose: Callable[[nn.Module], Iterable[nn.Parameter]] = nn.Module.parameters

    def build(self, model: nn.Module) -> Optimizer:
        kinds = {
            "adam": torch.optim.Adam,
            "adamw": torch.optim.AdamW,
            "sgd": torch.optim.SGD,
            "rmsprop": torch.optim.RMSprop,
        }
        return kinds[self.name](list(self.choose(model)), lr=self.lr, **self.options)


@dataclass(slots=True)
class Setup:
    """One training problem in the form that flaws change."""

    model: nn.Module
    draw: Draw
    loss: Loss
    kind: Kind
    recipe: Recipe = field(default_factory=Recipe)
    steps: int = 300
    evaluate: Loss | None = None
    """For a family of the kind "own": the loss by which it is judged, which flaws leave alone."""
    optimizer: Optimizer | None = None
    """Trains instead of the one of the recipe: the optimizer of a repair."""

    def case(self, seed: int = 0, batches: int = 4) -> leadline.Case:
        """The problem as a user would pass it to Leadline, with a few further batches."""
        generator = torch.Generator().manual_seed(1000 + seed)
        first, *others = [self.draw(generator) for _ in range(batches)]
        pairs = [each.inputs if each.targets is None else (each.inputs, each.targets) for each in others]
        return leadline.Case(
            self.model, first.inputs, first.targets, self.loss, self.recipe.build(self.model), pairs
        )

    def loss_of(self, batch: Batch) -> Tensor:
        output = self.model(*batch.inputs)
        return self.loss(output) if batch.targets is None else self.loss(output, batch.targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """What a structural flaw asks a family to build differently."""

    depth: int = 1
    """Factor of the number of blocks."""
    skips: bool = True
    norms: bool = True
    activation: Callable[[], nn.Module] | None = None
    """Instead of the family's own."""
    width: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    name: str
    area: str
    build: Callable[[Knobs], Setup]
    knobs: frozenset[str]
    """Which knobs it understands."""

    @property
    def half(self) -> Half:
        return half_of(self.name)


def half_of(family: str) -> Half:
    """The half of a family, by a bit of the hash of its name."""
    digest = hashlib.sha256(f"family {family}".encode()).digest()
    return "held out" if digest[0] % 2 else "calibration"


FAMILIES: dict[str, Family] = {}


def family(area: str, *knobs: str) -> Callable[[Callable[[Knobs], Setup]], Callable[[Knobs], Setup]]:
    """Register a function that builds a Setup as the family of its name."""

    def register(build: Callable[[Knobs], Setup]) -> Callable[[Knobs], Setup]:
        name = build.__name__.replace("_", "-")
        FAMILIES[name] = Family(name=name, area=area, build=build, knobs=frozenset(knobs))
        return build

    return register


# The score of a trained model, and that of the best output that ignores the inputs.


def score(setup: Setup, batches: Sequence[Batch]) -> float:
    """How good the outputs are: accuracy, explained variance, or minus the family's own loss."""
    setup.model.eval()
    if setup.kind == "own":
        evaluate = setup.evaluate or setup.loss
        losses = [float(_own_loss(setup, evaluate, each)) for each in batches]
        setup.model.train()
        mean = sum(losses) / len(losses)
        return -mean if math.isfinite(mean) else -math.inf
    with torch.no_grad():
        outputs = torch.cat([_first(setup.model(*each.inputs)).float() for each in batches])
    setup.model.train()
    targets = torch.cat([each.targets for each in batches if each.targets is not None])
    if not outputs.isfinite().all():
        return -math.inf
    return accuracy(outputs, targets) if setup.kind == "classes" else explained(outputs, targets)


def constant_score(setup: Setup, batches: Sequence[Batch]) -> float:
    """The score of the most frequent class, or of the mean; of a family's own loss, that of the untrained model."""
    if setup.kind == "numbers":
        return 0.0
    if setup.kind == "classes":
        targets = torch.cat([each.targets for each in batches if each.targets is not None]).flatten()
        counted = targets[targets >= 0] if not targets.is_floating_point() else targets.long()
        return float(counted.bincount().max() / counted.numel())
    return score(setup, batches)


def _own_loss(setup: Setup, evaluate: Loss, batch: Batch) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        output = setup.model(*batch.inputs)
        return (evaluate(output) if batch.targets is None else evaluate(output, batch.targets)).detach()


def _first(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    return output.logits if hasattr(output, "logits") else output[0]


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of right classes; classes are the last dimension, or the second if that is where they fit."""
    if targets.is_floating_point():
        return float(((outputs > 0) == (targets > 0.5)).float().mean())
    dim = -1 if outputs.shape[:-1] == targets.shape else 1
    is_counted = targets >= 0
    return float((outputs.argmax(dim) == targets)[is_counted].float().mean())


def explained(outputs: Tensor, targets: Tensor) -> float:
    """The share of the targets' variance that the outputs explain."""
    targets = targets.float()
    residual = (outputs.reshape(targets.shape) - targets).square().mean(0)
    return float(1 - (residual / targets.var(0, correction=0).clamp_min(1e-12)).mean())


def class_loss(output: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy with the classes in the last dimension."""
    return F.cross_entropy(output.flatten(0, -2), targets.flatten())
