"""The predictions, changes, parts and limits that an update reading reports are true."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from leadline import Case, Update
from leadline.checks._examples import geometric
from leadline.nn import MLP
from leadline.ops.optimizers import find_rule
from leadline.readings.update.direction import repeated_blocks
from leadline.readings.update.limits import (
    MAX_FORWARD_PASSES,
    _between,
    first_step_share,
    momentum_factor,
    search,
)
from leadline.readings.update.reading import read_update
from tests.support.zoo import ZOO, energy


def residual_case(*, depth: int = 6, dtype: torch.dtype = torch.float32) -> Case:
    torch.manual_seed(0)
    model = MLP(8, 16, depth, 4, scheme="residual-sqrt").to(dtype)
    return Case(model, torch.randn(32, 8, dtype=dtype), torch.randint(4, (32,)), F.cross_entropy)


def sgd(case: Case, lr: float, **options: float) -> Case:
    return replace(case, optimizer=torch.optim.SGD(case.model.parameters(), lr=lr, **options))


def read(case: Case, **options: bool) -> Update:
    return leadline.update(case.model, case.inputs, case.targets, case.loss, case.optimizer, **options)


def test_for_sgd_the_prediction_is_minus_the_rate_times_the_squared_gradient():
    case = sgd(residual_case(), lr=0.01)
    found = read(case)
    loss = case.loss(case.model(case.inputs), case.targets)
    square = sum(g.square().sum().item() for g in torch.autograd.grad(loss, list(case.model.parameters())))
    assert found.predicted_loss_change == pytest.approx(-0.01 * square, rel=1e-4)
    assert found.grad_square == pytest.approx(square, rel=1e-5)


def test_the_measured_change_approaches_the_predicted_one_as_the_rate_falls():
    case = residual_case(dtype=torch.float64)
    gaps = [abs(read(sgd(case, lr=lr)).ratio - 1) for lr in (1e-1, 1e-2, 1e-3, 1e-4)]
    assert gaps[-1] < 1e-3
    for larger, smaller in pairwise(gaps):
        assert smaller == pytest.approx(larger / 10, rel=0.5)  # the error is of first order in the rate


def test_predictions_use_the_actual_step_of_the_optimizer():
    case = residual_case()
    adam = replace(case, optimizer=torch.optim.Adam(case.model.parameters(), lr=1e-4, eps=0.0))
    loss = case.loss(case.model(case.inputs), case.targets)
    length = sum(g.abs().sum().item() for g in torch.autograd.grad(loss, list(case.model.parameters())))
    assert read(adam).predicted_loss_change == pytest.approx(-1e-4 * length, rel=1e-3)
    uphill = replace(case, optimizer=torch.optim.SGD(case.model.parameters(), lr=0.01, maximize=True))
    assert read(uphill).predicted_loss_change > 0
    assert read(uphill).safe_lr is None


def test_the_measured_change_equals_that_of_a_real_step():
    case = sgd(residual_case(), lr=0.5, momentum=0.9)
    found = read(case)
    before = case.loss(case.model(case.inputs), case.targets)
    outputs = case.model(case.inputs).detach()
    before.backward()
    case.optimizer.step()
    after = case.loss(case.model(case.inputs), case.targets)
    assert found.measured_loss_change == pytest.approx((after - before).item(), abs=1e-6)
    change = (case.model(case.inputs) - outputs).square().mean().sqrt().item()
    assert found.function_change == pytest.approx(change, rel=1e-4)
    assert found.function_change_relative == pytest.approx(
        change / outputs.square().mean().sqrt().item(), rel=1e-4
    )


def test_dropout_draws_the_same_mask_before_and_after_the_step():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 1))
    case = sgd(Case(model, torch.randn(16, 8), loss=energy), lr=0.0)
    found = read(case)
    assert found.measured_loss_change == 0.0
    assert found.function_change == 0.0


def test_the_parts_of_parameters_blocks_and_ranges_add_up_to_the_step():
    found = read(sgd(residual_case(), lr=0.01))
    total = found.predicted_loss_change
    assert sum(each.predicted for each in found.parameters) == pytest.approx(total)
    assert sum(each.predicted for each in found.blocks) == pytest.approx(total)
    assert sum(each.share for each in found.blocks) == pytest.approx(1)
    assert sum(each.share for each in found.ranges) == pytest.approx(1)
    assert sum(each.blocks for each in found.ranges) == len(found.blocks) == 8
    assert [each.repeated for each in found.blocks] == [False, *[True] * 6, False]


def test_a_frozen_block_has_no_part_of_the_step():
    case = residual_case()
    case.model.blocks[2].requires_grad_(requires_grad=False)
    found = read(sgd(case, lr=0.01))
    assert [each.name for each in found.blocks if each.predicted == 0] == [found.blocks[3].name]
    assert found.blocks[3].name.startswith("blocks.2")


def test_the_response_of_an_infinitesimal_step_is_linear_in_the_rate():
    case = residual_case(dtype=torch.float64)
    small, large = (
        read_update(sgd(case, lr=lr), None, responses=True).function_response for lr in (1e-4, 1.0)
    )
    assert large == pytest.approx(1e4 * small, rel=0.02)


def quadratic(curvatures: list[float], lr: float, **options: float) -> Case:
    """A loss whose Hessian is diagonal with these entries."""
    model = nn.Linear(len(curvatures), 1, bias=False)
    nn.init.ones_(model.weight)
    weights = torch.tensor(curvatures)
    return sgd(
        Case(
            model,
            torch.eye(len(curvatures)),
            loss=lambda y: (0.5 * weights[:, None] * y.square()).sum(),
        ),
        lr=lr,
        **options,
    )


@pytest.mark.parametrize("curvature", [4.0, 0.25])
def test_on_a_quadratic_loss_parting_and_stability_limit_equal_their_formulas(curvature: float):
    found = read(quadratic([curvature], lr=0.1), sharpness=True)
    assert found.sharpness == pytest.approx(curvature, rel=1e-3)
    assert found.stability_lr == pytest.approx(2 / curvature, rel=1e-3)
    assert found.parting * 0.1 == pytest.approx(
        1 / curvature, rel=0.05
    )  # half of the prediction is lost at the minimum


def test_lanczos_finds_a_sharp_direction_that_the_step_barely_touches():
    curvatures = [100.0, 1.0, 0.5]
    case = quadratic(curvatures, lr=1e-3)
    with torch.no_grad():
        case.model.weight[0, 0] = 1e-4  # hardly any gradient there
    along, largest = read(case), read(case, sharpness=True)
    assert along.sharpness_kind == "along the step"
    assert along.sharpness < 2
    assert largest.sharpness == pytest.approx(100.0, rel=1e-3)


def test_lanczos_agrees_with_the_full_hessian_of_a_network():
    case = sgd(residual_case(depth=2, dtype=torch.float64), lr=0.01)
    names = [name for name, _ in case.model.named_parameters()]
    shapes = [parameter.shape for parameter in case.model.parameters()]
    flat = torch.cat([parameter.detach().flatten() for parameter in case.model.parameters()])

    def loss(vector: Tensor) -> Tensor:
        parts = vector.split([shape.numel() for shape in shapes])
        made = {n: p.view(s) for n, p, s in zip(names, parts, shapes, strict=True)}
        return case.loss(torch.func.functional_call(case.model, made, case.inputs), case.targets)

    hessian = torch.autograd.functional.hessian(loss, flat, vectorize=True)
    exact = torch.linalg.eigvalsh(hessian)[-1].item()
    assert read(case, sharpness=True).sharpness == pytest.approx(exact, rel=0.05)


class NoSecondDerivative(torch.autograd.Function):
    @staticmethod
    def forward(context, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context, grad: Tensor) -> Tensor:
        return grad


def test_without_second_derivatives_finite_differences_are_used_and_noted():
    case = quadratic([4.0, 1.0], lr=0.1)
    smooth = case.loss
    found = read(replace(case, loss=lambda y: smooth(NoSecondDerivative.apply(y))), sharpness=True)
    assert found.sharpness == pytest.approx(4.0, rel=0.02)
    assert any("finite differences" in gap.why for gap in found.gaps)


def test_sharpness_also_measures_each_depth_range_alone():
    case = sgd(residual_case(), lr=0.01)
    plain, sharp = read(case).ranges, read(case, sharpness=True).ranges
    assert len(plain) == len(sharp) > 1
    assert all(each.function_change is None for each in plain)
    assert all(each.function_change > 0 for each in sharp)


def test_a_depth_range_moved_alone_changes_the_loss_by_its_share():
    case = sgd(residual_case(dtype=torch.float64), lr=1e-5)
    found = read(case, sharpness=True)
    assert len(found.ranges) > 1
    for each in found.ranges:
        assert each.loss_change == pytest.approx(each.share * found.predicted_loss_change, rel=1e-3)


def test_clipping_before_the_step_is_part_of_the_step():
    case = sgd(residual_case(), lr=0.01)
    parameters = list(case.model.parameters())
    plain = read_update(case, None)
    clipped = read_update(
        case, None, before_step=lambda: torch.nn.utils.clip_grad_norm_(parameters, 1e-3, foreach=False)
    )
    assert clipped.update_norm == pytest.approx(1e-5, rel=1e-3)
    assert plain.update_norm > 10 * clipped.update_norm


def test_a_bfloat16_step_that_is_rounded_away_is_counted():
    case = residual_case(dtype=torch.bfloat16)
    shares = {}
    for lr in (1e-6, 1e-1):
        found = read(replace(case, optimizer=torch.optim.Adam(case.model.parameters(), lr=lr)))
        matrices = [each for each in found.parameters if each.name.endswith("fc1.weight")]
        shares[lr] = [each.swallowed for each in matrices]
    assert min(shares[1e-6]) > 0.9
    assert all(each is None or each < 0.1 for each in shares[1e-1])


def test_in_float32_hardly_anything_is_swallowed():
    found = read(
        replace(case := residual_case(), optimizer=torch.optim.Adam(case.model.parameters(), lr=1e-3))
    )
    assert all(each.swallowed is None for each in found.parameters if each.weight_norm)


def test_a_change_below_rounding_gives_no_ratio():
    assert read(sgd(residual_case(), lr=1e-9)).ratio is None


def test_a_nan_loss_is_reported_as_nan():
    case = ZOO["nan-in-input"]()
    found = read_update(sgd(case, lr=0.1), None)
    assert math.isnan(found.predicted_loss_change)
    assert found.safe_lr is None
    assert "not finite" in found.confidence_why
    assert any("the loss is nan" in gap.why for gap in found.gaps)


def test_momentum_lowers_the_safe_rate_to_that_of_a_sustained_step():
    plain, heavy = (read(sgd(residual_case(), lr=0.1, momentum=beta)).safe_lr for beta in (0.0, 0.9))
    assert heavy == pytest.approx(plain / 10, rel=0.01)
    weight = [torch.nn.Parameter(torch.ones(2, 2))]
    assert first_step_share(torch.optim.SGD(weight, momentum=0.9, dampening=0.9), 0) == pytest.approx(1)
    assert first_step_share(torch.optim.Adam(weight), 0) == 1
    assert momentum_factor({"momentum": 0.9}, find_rule("SGD")) == pytest.approx(1.9)
    assert momentum_factor({"betas": (0.9, 0.999)}, find_rule("Adam")) == pytest.approx(19)
    assert momentum_factor({"momentum": 0.9}, find_rule("Muon")) == 1


@pytest.mark.parametrize("curvature", [1e-3, 0.1, 1.0, 30.0, 1e4])
def test_the_search_along_a_parabola_ends_at_its_minimum(curvature: float):
    def loss(multiple: float) -> float:
        return 1.0 - multiple + 0.5 * curvature * multiple**2

    line = search(loss, 1.0, -1.0, loss(1.0), 1e-9)
    if line.is_bound:
        assert line.parting <= 1 / curvature
    else:
        assert line.parting == pytest.approx(1 / curvature, rel=0.1)
    assert line.curvature == pytest.approx(curvature, rel=1e-3)


OPTIMIZERS = {
    "SGD": lambda p, lr: torch.optim.SGD(p, lr=lr),
    "SGD, momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "AdamW": lambda p, lr: torch.optim.AdamW(p, lr=lr),
    "AdamW, rate in a tensor": lambda p, lr: torch.optim.AdamW(p, lr=torch.tensor(lr)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_safe_rate_does_not_depend_on_the_current_rate(name: str):
    case = residual_case(depth=2)
    rates = (1e-12, 1e-8, 1e-6, 1e-4, 1e-2, 1.0, 100.0)
    cases = [replace(case, optimizer=OPTIMIZERS[name](case.model.parameters(), lr)) for lr in rates]
    found = [read_update(each, None) for each in cases]
    middle = sorted(each.safe_lr for each in found)[len(found) // 2]
    assert [each.safe_lr for each in found] == pytest.approx([middle] * len(found), rel=0.1)
    assert not any(each.safe_lr_is_bound for each in found)
    assert [each.lr for each in found] == pytest.approx(list(rates))


def test_a_loss_without_curvature_has_a_safe_rate_that_is_marked_as_a_bound():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    found = read(sgd(Case(model, torch.randn(8, 4), loss=lambda y: y.mean()), lr=0.01))
    assert found.safe_lr_is_bound
    assert found.parting_is_bound
    assert "at least" in found.confidence_why


@pytest.mark.parametrize("curvature", [1e-9, 1e-3, 1.0, 1e3, 1e9])
def test_the_search_ends_after_few_passes_for_any_distance_of_the_parting(curvature: float):
    multiples = []

    def loss(multiple: float) -> float:
        multiples.append(multiple)
        return 1e10 - multiple + 0.5 * curvature * multiple**2

    search(loss, 1e10, -1.0, loss(1.0), 1e-9)
    assert len(multiples) <= 1 + MAX_FORWARD_PASSES


def test_the_search_survives_a_non_finite_loss():
    line = search(lambda multiple: math.nan, 1.0, -1.0, math.inf, 1e-9)
    assert line.parting == 0.0


def test_an_update_survives_json():
    found = read(sgd(residual_case(), lr=0.01), sharpness=True)
    assert Update.from_json(found.to_json()) == found


def test_trainable_parameters_outside_the_optimizer_are_named():
    case = residual_case()
    partly = replace(case, optimizer=torch.optim.SGD(case.model.blocks.parameters(), lr=0.01))
    assert "output.weight" in read(partly).gaps[0].where


def test_the_next_multiple_before_a_non_finite_loss_is_the_geometric_middle():
    assert _between(1.0, 0.1, 4.0, math.inf) == 2.0
    assert 1.0 < _between(1.0, 0.1, 4.0, 3.0) < 4.0


def test_a_profile_without_streams_has_no_repeated_blocks():
    assert repeated_blocks(msgspec.structs.replace(geometric(blocks=4), streams=(), blocks=())) == []
