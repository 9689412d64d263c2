"""A copied case is the same network in every respect, and shares nothing that training would change."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import torch
from torch import nn

from leadline import Case
from leadline.errors import InputError
from leadline.fixes._engine.copy import copy_case
from leadline.fixes._engine.trial import train_step
from leadline.nn.schedules import SlowStart


def case_of(model: nn.Module, make=torch.optim.SGD, **changes) -> Case:
    optimizer = make(model.parameters(), lr=0.1)
    return Case(model, torch.randn(8, 4), torch.randn(8, 4), nn.functional.mse_loss, optimizer, **changes)


def losses(case: Case, steps: int) -> list[float]:
    return [train_step(case, (case.inputs, case.targets)) for _ in range(steps)]


OPTIMIZERS = [
    torch.optim.SGD,
    partial(torch.optim.SGD, momentum=0.9),
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.LBFGS,
]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_a_copy_trains_as_the_original_would_and_leaves_it_alone(make):
    torch.manual_seed(0)
    original = case_of(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), make)
    losses(original, 3)  # optimizers with state are copied with it
    before = {name: value.clone() for name, value in original.model.state_dict().items()}
    copied = losses(copy_case(original), 5)
    assert all(torch.equal(value, before[name]) for name, value in original.model.state_dict().items())
    assert copied == losses(original, 5)


def test_a_scheduler_on_the_original_does_not_make_the_copy_step_the_original():
    original = case_of(nn.Linear(4, 4))
    torch.optim.lr_scheduler.ConstantLR(original.optimizer)
    before = original.model.weight.clone()
    copied = copy_case(original)
    losses(copied, 2)
    assert torch.equal(original.model.weight, before)
    assert not torch.equal(copied.model.weight, before)


def test_a_copy_has_the_parts_of_the_step_and_no_step_hooks_of_the_user():
    original, seen = case_of(nn.Linear(4, 4)), []
    original.optimizer.register_step_post_hook(lambda *_: seen.append(1))
    original.optimizer.register_step_pre_hook(SlowStart(10))
    copied = copy_case(original)
    losses(copied, 1)
    assert seen == []
    assert [type(each) for each in copied.optimizer._optimizer_step_pre_hooks.values()] == [SlowStart]


def test_tied_weights_stay_tied_by_object_and_by_memory():
    first, second, third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    third.weight.data = first.weight.data
    copied = copy_case(case_of(nn.Sequential(first, second, third))).model
    assert copied[1].weight is copied[0].weight
    assert copied[2].weight is not copied[0].weight
    assert copied[2].weight.data_ptr() == copied[0].weight.data_ptr()
    assert copied[0].weight.data_ptr() != first.weight.data_ptr()


class Stash(nn.Linear):
    def forward(self, x):
        self.seen = super().forward(x)
        return self.seen


def test_a_result_of_an_earlier_pass_that_a_module_keeps_is_no_obstacle():
    original = case_of(Stash(4, 4))
    original.model(original.inputs)
    assert len(losses(copy_case(original), 2)) == 2


def test_old_weight_norm_can_be_copied():
    with pytest.warns(FutureWarning):
        model = nn.utils.weight_norm(nn.Linear(4, 4))
    original = case_of(model)
    losses(original, 1)
    assert losses(copy_case(original), 3) == losses(original, 3)


class Nest(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.inner = Nest(depth - 1) if depth else nn.Linear(4, 4)


def test_a_model_that_is_nested_deeper_than_python_recurses_by_default_is_copied():
    copied = copy_case(Case(Nest(200), torch.zeros(1, 4)))
    assert sum(1 for _ in copied.model.parameters()) == 2


class Locked(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.lock = threading.Lock()


def test_what_cannot_be_copied_is_refused_with_the_reason():
    with pytest.raises(InputError, match=r"(?s)the model \(Locked\).*_thread\.lock"):
        copy_case(case_of(Locked()))


class Scored(nn.Linear):
    def score(self, output, targets):
        return (output - targets + self.weight.sum()).square().mean()


def test_a_loss_that_is_a_method_of_the_model_becomes_that_of_the_copy():
    model = Scored(4, 4)
    original = Case(model, torch.randn(8, 4), torch.randn(8, 4), model.score)
    copied = copy_case(original)
    assert copied.loss.__self__ is copied.model


def test_a_loss_with_parameters_is_copied_with_the_optimizer_that_holds_them():
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, output, targets):
            return self.weight * nn.functional.mse_loss(output, targets)

    model, loss = nn.Linear(4, 4), Weighted()
    sgd = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1)
    copied = copy_case(Case(model, torch.randn(8, 4), torch.randn(8, 4), loss, sgd))
    losses(copied, 1)
    assert loss.weight.item() == 1.0
    assert copied.loss.weight.item() != 1.0
