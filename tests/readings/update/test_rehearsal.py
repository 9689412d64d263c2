"""A rehearsal equals training on one batch, ends when enough is known, and changes nothing."""

from __future__ import annotations

import math
import weakref
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leadline
from benchmarks.footprint import differences, footprint
from leadline import Case
from leadline.lab.demo import deep_mlp
from leadline.readings.update.rehearsal import (
    MAX_REHEARSAL_STEPS,
    MIN_REHEARSAL_STEPS,
    constant_loss,
    rehearse,
)
from leadline.records import Head
from tests.readings.update.test_restore import OPTIMIZERS, with_optimizer
from tests.support.zoo import ZOO, Specimen, animals

CROSS_ENTROPY = Head(loss="cross_entropy", value=1.0, classes=4, logit_ms=1.0, logit_max=1.0, behind="")


def mlp_case(lr: float, classes: int = 4) -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, classes))
    sgd = torch.optim.SGD(model.parameters(), lr=lr)
    return Case(model, torch.randn(32, 8), torch.randint(classes, (32,)), F.cross_entropy, sgd)


def train(case: Case, steps: int) -> list[float]:
    losses = []
    for _ in range(steps + 1):
        loss = case.loss(case.model(case.inputs), case.targets)
        losses.append(loss.item())
        case.optimizer.zero_grad()
        loss.backward()
        case.optimizer.step()
    return losses


def test_the_losses_equal_those_of_training_on_the_batch():
    found = rehearse(mlp_case(lr=0.05), CROSS_ENTROPY)
    assert found.steps == MAX_REHEARSAL_STEPS
    assert list(found.losses) == pytest.approx(train(mlp_case(lr=0.05), MAX_REHEARSAL_STEPS), rel=1e-6)


def test_it_ends_after_enough_progress_but_not_before_momentum_has_built_up():
    found = rehearse(mlp_case(lr=1.0), CROSS_ENTROPY)
    assert found.learned
    assert found.steps == MIN_REHEARSAL_STEPS


def test_it_ends_at_the_first_non_finite_loss():
    found = rehearse(mlp_case(lr=1e30), CROSS_ENTROPY)
    assert found.steps < MAX_REHEARSAL_STEPS
    assert not math.isfinite(found.losses[-1])
    assert found.progress == -math.inf
    assert found.has_spike


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_fresh_optimizer_stays_fresh(optimizer: str):
    case = with_optimizer(ZOO["conv-batch-norm"], OPTIMIZERS[optimizer])
    before, known = footprint(case), len(case.optimizer.state)
    rehearse(case, None, steps=3)
    assert differences(before, footprint(case)) == []
    assert len(case.optimizer.state) == known


@pytest.mark.parametrize("animal", animals(without=("deep",)))
def test_every_model_of_the_zoo_is_restored(animal: Specimen):
    case = with_optimizer(animal, lambda p: torch.optim.SGD(p, lr=1e-3))
    before = footprint(case)
    rehearse(case, None, steps=2)
    assert differences(before, footprint(case)) == []


def test_the_loss_to_beat_is_the_loss_of_the_best_constant_output():
    targets = torch.tensor([0, 0, 0, 1, 1, 2])
    logits = torch.zeros(3, requires_grad=True)
    lbfgs = torch.optim.LBFGS([logits], max_iter=100, tolerance_grad=1e-9)

    def loss() -> torch.Tensor:
        lbfgs.zero_grad()
        found = F.cross_entropy(logits.expand(6, 3), targets)
        found.backward()
        return found

    lbfgs.step(loss)
    assert constant_loss(targets, CROSS_ENTROPY) == pytest.approx(loss().item(), abs=1e-5)


def test_ignored_targets_do_not_count_as_a_class():
    ignored = torch.tensor([0, 1, -100, -100])
    assert constant_loss(ignored, CROSS_ENTROPY) == pytest.approx(math.log(2))
    assert constant_loss(torch.tensor([-100]), CROSS_ENTROPY) is None


def test_the_loss_to_beat_is_the_variance_for_numbers_and_the_entropy_for_probabilities():
    numbers = torch.tensor([[0.0, 1.0], [2.0, 1.0]])
    square = replace_loss("mse_loss")
    assert constant_loss(numbers, square) == pytest.approx(
        F.mse_loss(numbers.mean(0).expand(2, 2), numbers).item()
    )
    chances = torch.tensor([[1.0], [0.0], [0.0], [0.0]])
    binary = replace_loss("binary_cross_entropy_with_logits")
    expected = F.binary_cross_entropy(torch.full((4, 1), 0.25), chances).item()
    assert constant_loss(chances, binary) == pytest.approx(expected)


def test_without_usable_targets_there_is_no_loss_to_beat():
    assert constant_loss(None, CROSS_ENTROPY) is None
    assert constant_loss(torch.ones(3), replace_loss("")) is None
    assert constant_loss(torch.ones(3), None) is None


def test_labels_among_the_inputs_are_targets():
    class OwnLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self.layer(x), labels)

    case, model = mlp_case(lr=0.1), OwnLoss()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    own = Case(model, {"x": case.inputs, "labels": case.targets}, optimizer=sgd)
    plain = replace(case, model=model.layer, optimizer=sgd)
    assert rehearse(own, CROSS_ENTROPY) == rehearse(plain, CROSS_ENTROPY)


def replace_loss(name: str) -> Head:
    return Head(loss=name, value=1.0, classes=None, logit_ms=1.0, logit_max=1.0, behind="")


def test_only_one_step_is_in_memory_at_a_time():
    case = mlp_case(lr=1e-3)
    alive: list[int] = []
    made: list[weakref.ref[torch.Tensor]] = []

    def watch(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        alive.append(sum(each() is not None for each in made))
        made.append(weakref.ref(output))

    handle = case.model[0].register_forward_hook(watch)
    rehearse(case, CROSS_ENTROPY)
    handle.remove()
    assert len(alive) == MAX_REHEARSAL_STEPS + 1
    assert max(alive) == 0  # outputs of the first layer in earlier steps are freed


def deep(activation: type[nn.Module], depth: int, classes: int = 10) -> Case:
    """A default-initialized plain stack on unbalanced classes: its head learns the class frequencies."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(32, 32), activation())]
    model = nn.Sequential(*hidden, nn.Linear(32, classes))
    targets = torch.randint(classes, (64,)) * torch.randint(2, (64,))
    adam = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return Case(model, torch.randn(64, 32), targets, F.cross_entropy, adam)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(deep(nn.ReLU, 30), id="ReLU, 30 layers"),
        pytest.param(deep(nn.Sigmoid, 20), id="sigmoid, 20 layers"),
        pytest.param(deep(nn.Tanh, 60), id="tanh, 60 layers"),
        pytest.param(deep_mlp(), id="the demo"),
    ],
)
def test_a_network_that_only_learns_the_class_frequencies_has_not_learned(case: Case):
    report = leadline.check(case)
    assert report.verdict == "fails"
    assert report.profile.rehearsal.relative_fall > 0  # its head does learn
    assert not report.profile.rehearsal.learned


def test_the_rehearsal_is_optional():
    assert leadline.check(mlp_case(lr=0.1)).profile.rehearsal is not None
    assert leadline.check(mlp_case(lr=0.1), rehearse=False).profile.rehearsal is None
    assert leadline.check(mlp_case(lr=0.1), update=False).profile.rehearsal is None
