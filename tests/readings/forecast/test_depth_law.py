"""Depth limits from measured points: without a fit there is no limit, and a non-finite loss is one."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from leadline.checks._examples import geometric, stack_with_update
from leadline.readings.depth_law import exponents_of, find_depth_limits, fit_exponent, limits_of, log_parting
from leadline.readings.forecast import _change, body_of
from leadline.records import DepthPoint, Profile

DEPTHS = (8, 16, 32, 64)


def point(depth: int, **fields: Any) -> DepthPoint:
    plain: dict[str, Any] = {
        "depth": depth, "seed": 0, "parameters": 100, "blocks": depth, "loss": 2.3, "grad_square": 1.0,
        "loss_change": -0.1, "function_change": 0.1, "total_loss_change": -0.1, "total_function_change": 0.1,
        "ratio": 0.9, "parting": 10.0, "parting_is_bound": False, "forward_e_folds": 0.0, "backward_e_folds": 0.0,
        "normalized": False,
    }  # fmt: skip
    return DepthPoint(**{**plain, **fields})


def causes(**by_depth: Any) -> list[str]:
    points = [point(depth, **{name: at(depth) for name, at in by_depth.items()}) for depth in DEPTHS]
    return [limit.cause for limit in find_depth_limits(points, DEPTHS, "SGD")]


def test_a_parting_that_falls_with_depth_gives_a_limit():
    assert "step" in causes(parting=lambda depth: 100.0 / depth**2)
    assert causes(parting=lambda depth: 10.0) == []


def test_a_parting_that_was_not_reached_is_ignored():
    assert log_parting(point(8, parting=None)) is None
    assert log_parting(point(8, parting_is_bound=True)) is None
    assert log_parting(point(8, parting=0.0)) == -math.inf
    assert causes(parting=lambda depth: None) == []


@pytest.mark.parametrize(("folds", "found"), [(0.2, ["backward"]), (0.0, [])])
def test_gradients_that_change_in_proportion_to_depth_give_a_limit(folds: float, found: list[str]):
    assert causes(backward_e_folds=lambda depth: -folds * depth) == found


def test_e_folds_at_a_single_depth_give_no_limit():
    assert causes(backward_e_folds=lambda depth: -50.0 if depth == 64 else None) == []


def test_a_non_finite_loss_is_a_limit_at_its_depth():
    points = [point(depth, loss=math.nan if depth >= 32 else 2.3) for depth in DEPTHS]
    (limit,) = [each for each in find_depth_limits(points, DEPTHS, "SGD") if "not finite" in each.message]
    assert limit.depth == 32


def test_without_two_finite_points_there_is_no_exponent():
    assert fit_exponent([{8: 1.0}, {8: math.nan, 16: 2.0}], DEPTHS) is None
    assert fit_exponent([{8: 1.0, 16: 2.0, 32: 3.0}], DEPTHS) is not None


def test_blocks_without_a_gradient_give_no_exponent_and_no_limit_of_the_step():
    update = stack_with_update(shares=[0.0] * 16).update
    assert update is not None
    assert exponents_of([replace(each, grad_square=0.0, predicted=0.0) for each in update.blocks]) == {}
    assert [each.cause for each in limits_of(point(16), 16, {}, "SGD")] == []


def test_the_body_of_a_profile_without_a_stream_is_empty():
    profile: Profile = replace(geometric(blocks=4), streams=(), blocks=())
    assert body_of(profile) == []


@pytest.mark.parametrize(
    ("moments", "change"),
    [
        ([1.0], None),
        ([0.0, 1.0], None),
        ([1.0, math.e], 1.0),
        ([1.0, math.inf], math.inf),
        ([1.0, 0.0], -math.inf),
    ],
    ids=str,
)
def test_the_change_of_a_signal_needs_two_positive_ends(moments: list[float], change: float | None):
    assert _change(moments) == (change if change is None else pytest.approx(change))
    assert math.isnan(_change([1.0, math.nan]))
