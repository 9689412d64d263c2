"""Steps of unusual optimizers: row-wise state, generators, autocast, missing weights, no signature."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leadline
from leadline import Case
from leadline.errors import InputError
from leadline.readings.update.curvature import MIN_STEPS_FOR_METRIC
from leadline.readings.update.probe import needs_closure
from leadline.readings.update.tensor_sums import inner_products, largest_singular_value


def case(make=lambda p: torch.optim.SGD(p, lr=0.1), steps: int = 0) -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    made = Case(
        model, torch.randn(10, 6), torch.randint(3, (10,)), F.cross_entropy, make(list(model.parameters()))
    )
    for _ in range(steps):
        made.optimizer.zero_grad()
        made.loss(made.model(made.inputs), made.targets).backward()
        made.optimizer.step()
    return made


def test_the_curvature_under_adam_is_measured_only_after_ten_steps():
    early = leadline.update(case(torch.optim.Adam, steps=MIN_STEPS_FOR_METRIC // 2), sharpness=True)
    late = leadline.update(case(torch.optim.Adam, steps=MIN_STEPS_FOR_METRIC + 2), sharpness=True)
    assert early.sharpness_kind != "lanczos"
    assert "average only 5 gradients" in early.gaps[0].why
    assert late.sharpness_kind == "lanczos"
    assert late.sharpness > 0


class Rows(torch.optim.Optimizer):
    """Stores one mean square per row, as Adafactor does."""

    def __init__(self, params) -> None:
        super().__init__(params, {"lr": 0.01})

    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                state = self.state[each]
                state["exp_avg_sq"] = each.grad.square().reshape(each.shape[0], -1).mean(1)
                each.data.sub_(group["lr"] * each.grad)


def test_row_wise_state_gives_a_gap_instead_of_a_curvature():
    found = leadline.update(case(Rows, steps=MIN_STEPS_FOR_METRIC + 2), sharpness=True)
    assert found.sharpness_kind != "lanczos"
    assert "one number per entry" in found.gaps[0].why


class Noisy(torch.optim.SGD):
    """Holds generators and tensors, which a measurement has to restore."""

    def __init__(self, params) -> None:
        super().__init__(params, lr=0.1)
        self.generator, self.python = torch.Generator().manual_seed(3), random.Random(4)
        self.seen, self.sparse = torch.zeros(2), torch.eye(2).to_sparse()

    def step(self, closure=None) -> None:
        super().step(closure)
        torch.randn(3, generator=self.generator)
        self.python.random()
        self.seen.resize_(5).fill_(1.0)
        self.sparse.mul_(2)


def test_generators_and_tensors_of_an_optimizer_are_restored():
    made = case(Noisy)
    before = made.optimizer.generator.get_state(), made.optimizer.python.getstate()
    leadline.update(made)
    assert torch.equal(made.optimizer.generator.get_state(), before[0])
    assert made.optimizer.python.getstate() == before[1]
    assert made.optimizer.seen.tolist() == [0.0, 0.0]
    assert torch.equal(made.optimizer.sparse.to_dense(), torch.eye(2))


def test_the_loss_resolution_under_autocast_is_that_of_its_dtype():
    made = case()

    def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output.float(), targets)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = leadline.update(made.model, made.inputs, made.targets, loss, made.optimizer)
    fine = leadline.update(made.model, made.inputs, made.targets, loss, made.optimizer)
    assert rough.loss_resolution > 100 * fine.loss_resolution


def test_weights_on_the_meta_device_are_refused_by_name():
    made = case()
    made.model.register_parameter("ghost", nn.Parameter(torch.empty(3, device="meta")))
    optimizer = torch.optim.SGD(made.model.parameters(), lr=0.1)
    with pytest.raises(InputError, match="ghost"):
        leadline.update(made.model, made.inputs, made.targets, made.loss, optimizer)


def test_an_optimizer_whose_step_has_no_signature_needs_no_closure():
    class Odd:
        step = print

    assert not needs_closure(Odd())
    assert needs_closure(torch.optim.LBFGS([nn.Parameter(torch.ones(1))]))


def test_no_tensors_have_no_inner_products():
    assert inner_products([], []) == []


def test_a_matrix_of_zeros_has_a_largest_singular_value_of_zero():
    assert largest_singular_value(torch.zeros(3, 2)) == 0.0
