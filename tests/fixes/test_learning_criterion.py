"""What counts as learning, read off losses alone, and the shapes of the reference network."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leadline import Case
from leadline.fixes._engine.failure import training_failure
from leadline.fixes._engine.reference import LearningCriterion, build_reference

STEPS = 40
CONSTANT = LearningCriterion(constant=1.0)


def falling(first: float, last: float) -> tuple[float, ...]:
    """Losses on a straight line."""
    return tuple(first + (last - first) * step / (STEPS - 1) for step in range(STEPS))


def test_above_a_constant_output_only_a_loss_that_falls_fast_enough_is_on_its_way():
    assert CONSTANT.is_halfway(falling(6.0, 2.0))
    assert not CONSTANT.is_halfway((2.0,) * STEPS)
    assert not CONSTANT.is_halfway(falling(2.0, 6.0))
    assert not CONSTANT.is_halfway(falling(1000.0, 980.0))


def test_a_loss_that_has_come_down_to_the_constant_output_is_not_on_its_way_any_more():
    assert not CONSTANT.is_halfway(falling(6.0, 1.0)[:-10] + (1.0,) * 20)


def test_a_training_that_ends_in_nan_is_not_on_its_way():
    assert not CONSTANT.is_halfway((*falling(6.0, 2.0), math.nan))


def test_enough_is_measured_from_the_fitted_constant_where_there_is_no_other():
    fitted = LearningCriterion(fitted_constant=1.0)
    assert not fitted.has_learned_enough(falling(3.0, 1.0) + (1.0,) * STEPS)
    assert fitted.has_learned_enough(falling(3.0, 0.1) + (0.1,) * STEPS)


def test_without_any_constant_a_loss_that_falls_is_enough():
    assert LearningCriterion().has_learned_enough(falling(3.0, 1.0) + (1.0,) * STEPS)
    assert not LearningCriterion().has_learned_enough((1.0,) * STEPS)


@pytest.mark.parametrize("losses", [(), (1.0, math.nan), (1.0, *[3.0] * 9)], ids=["none", "nan", "risen"])
def test_a_training_that_ends_nowhere_or_higher_diverges(losses: tuple[float, ...]):
    assert training_failure(losses) == "diverges"


def test_a_training_whose_loss_does_not_move_stays():
    assert training_failure((1.0,) * 10) == "stays"


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, ids: Tensor) -> Tensor:
        y: Tensor = self.head(self.table(ids))
        return y


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Positions(), torch.zeros(4, 6, dtype=torch.long)),
        (nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(108, 5)), torch.randn(4, 1, 8, 8)),
        (nn.Sequential(nn.Linear(8, 1), nn.Flatten(0)), torch.randn(4, 8)),
    ],
    ids=["ids", "images", "one number"],
)
def test_a_reference_answers_in_the_shape_of_the_model(model: nn.Module, inputs: Tensor):
    reference = build_reference(Case(model, inputs, loss=F.mse_loss))
    assert reference is not None
    assert reference(inputs).shape == model(inputs).shape
