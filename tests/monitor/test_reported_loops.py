"""Mistakes of loops that people reported, each in its smallest form, beside what is done on purpose."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

import leadline
from leadline.monitor.loop_batches import DENSE_STEPS

STEPS = 48


class Dropping(nn.Module):
    """Drops units by a function and its own mode, without a module for it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 16), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.dropout(self.first(x).relu(), 0.5, training=self.training))


def network(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), *layers, nn.ReLU(), nn.Linear(16, 2))


def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(16, 4, generator=generator)
    return x, (x[:, 0] > 0).long()


def alarms(
    model: nn.Module, step: Callable[[Optimizer, torch.Generator, int], Optimizer | None], steps: int = STEPS
) -> tuple[list[str], leadline.Watch]:
    """Codes of the alarms of a loop; `step` may return another optimizer to go on with."""
    generator = torch.Generator().manual_seed(0)
    optimizer = Adam(model.parameters(), lr=1e-3)
    with leadline.watch(model, optimizer) as watch:
        for number in range(steps):
            optimizer = step(optimizer, generator, number) or optimizer
    assert watch._steps.ledger.trouble is None
    return [each.code for each in watch.alerts if each.severity != "info"], watch


def learn(model: nn.Module, optimizer: Optimizer, generator: torch.Generator) -> None:
    x, y = batch(generator)
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


@pytest.mark.parametrize("clears_each", [True, False])
def test_gradients_of_parts_of_a_batch_are_not_cleared_between_them(clears_each):
    model = network()

    def step(optimizer: Optimizer, generator: torch.Generator, number: int) -> None:
        optimizer.zero_grad()
        for _ in range(2):
            if clears_each:
                optimizer.zero_grad()
            x, y = batch(generator)
            (F.cross_entropy(model(x), y) / 2).backward()
        optimizer.step()

    assert ("T817" in alarms(model, step)[0]) == clears_each


def test_gradients_that_moved_the_weights_before_they_were_cleared_were_used():
    model = network()

    def step(optimizer: Optimizer, generator: torch.Generator, number: int) -> None:
        x, y = batch(generator)
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():  # the ascent of sharpness-aware minimization
            moves = [0.05 * each.grad for each in model.parameters()]
            torch._foreach_add_(list(model.parameters()), moves)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), moves)
        optimizer.step()
        optimizer.zero_grad()

    assert "T817" not in alarms(model, step)[0]


@pytest.mark.parametrize("epoch", [8, 2 * DENSE_STEPS])
def test_a_new_optimizer_in_each_epoch_is_named_and_followed(epoch):
    model = network()

    def step(optimizer: Optimizer, generator: torch.Generator, number: int) -> Optimizer:
        if number % epoch == 0:
            optimizer = Adam(model.parameters(), lr=2e-3)
        learn(model, optimizer, generator)
        return optimizer

    codes, watch = alarms(model, step, steps=6 * epoch)
    assert "T826" in codes
    assert watch.step == 6 * epoch
    assert watch.history.scalars("lr").values[-1] == pytest.approx(2e-3)


def test_an_optimizer_for_a_second_stage_is_followed_without_an_alarm():
    model = network()
    seen: list[Optimizer] = []

    def step(optimizer: Optimizer, generator: torch.Generator, number: int) -> Optimizer:
        if number == STEPS // 2:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            seen.append(optimizer)
        learn(model, optimizer, generator)
        return optimizer

    codes, watch = alarms(model, step)
    assert codes == []
    assert watch.step == STEPS
    assert watch.history.scalars("lr").values[-1] == pytest.approx(0.05)
    assert not seen[0]._optimizer_step_pre_hooks
    assert not seen[0]._optimizer_step_post_hooks


def test_optimizers_that_were_replaced_are_not_kept():
    model = network()

    def step(optimizer: Optimizer, generator: torch.Generator, number: int) -> Optimizer:
        optimizer = Adam(model.parameters(), lr=1e-3)
        learn(model, optimizer, generator)
        return optimizer

    generator = torch.Generator().manual_seed(0)
    first = Adam(model.parameters(), lr=1e-3)
    with leadline.watch(model, first) as watch:
        for number in range(STEPS):
            step(first, generator, number)
        gc.collect()
        kept = [each for each in gc.get_objects() if type(each) is Adam and each is not first]
        assert len([each for each in kept if each.param_groups[0]["params"][0] is model[0].weight]) <= 1
        assert len(watch._handles) <= 6


@pytest.mark.parametrize("goes_back", [True, False])
def test_dropout_by_a_function_is_switched_off_in_eval_mode(goes_back):
    model = Dropping()

    def step(optimizer: Optimizer, generator: torch.Generator, number: int) -> None:
        learn(model, optimizer, generator)
        if number == STEPS // 3:
            model.eval()
            with torch.no_grad():
                model(batch(generator)[0])
            model.train(goes_back)

    assert ("T822" in alarms(model, step)[0]) == (not goes_back)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_validation_set_in_one_batch_is_an_evaluation_when_it_comes_back(mode):
    model = network(nn.Dropout(0.5))
    held_out = torch.randn(40, 4)

    def step(optimizer: Optimizer, generator: torch.Generator, number: int) -> None:
        learn(model, optimizer, generator)
        if number % 8 == 7:
            model.train(mode == "train")
            with torch.no_grad():
                model(held_out)
            model.train()

    assert ("T823" in alarms(model, step)[0]) == (mode == "train")


def test_new_batches_without_gradients_are_targets_or_samples():
    model = network(nn.Dropout(0.5))

    def step(optimizer: Optimizer, generator: torch.Generator, number: int) -> None:
        with torch.no_grad():
            model(batch(generator)[0])
        learn(model, optimizer, generator)

    assert "T823" not in alarms(model, step)[0]
