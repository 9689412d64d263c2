"""Depth limits from measured points: without a fit there is no limit, and a non-finite loss is one."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from leadline.checks._examples import geometric, stack_with_update
from leadline.errors import InputError
from leadline.readings.depth_law import (
    crossing,
    deeper_part,
    exponents_of,
    find_depth_limits,
    fit_exponent,
    is_wide,
    limits_of,
    linear_crossing,
    log_parting,
    mean_interval,
    repeated_steps,
    student_quantile,
)
from leadline.readings.forecast import _change, body_of
from leadline.records import DepthLimit, DepthPoint, Exponent, Profile

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


def limits(optimizer: str = "SGD", **by_depth: Any) -> dict[str, DepthLimit]:
    """Each limit of a family whose fields depend on depth like this."""
    points = [point(depth, **{name: at(depth) for name, at in by_depth.items()}) for depth in DEPTHS]
    return {limit.cause: limit for limit in find_depth_limits(points, DEPTHS, optimizer)}


@pytest.mark.parametrize(("optimizer", "multiple"), [("SGD", 4.0), ("AdamW", 16.0), ("Unheard-of", 4.0)])
@pytest.mark.parametrize("power", [0.5, 2.0])
def test_limits_of_the_step_are_where_the_law_of_the_parting_meets_them(
    optimizer: str, multiple: float, power: float
):
    """The step keeps half of its promise at depth 20, and is as much too long as trainings tolerate beyond."""
    found = limits(optimizer, parting=lambda depth: (20 / depth) ** power)
    assert found["promise"].depth == pytest.approx(20)
    assert found["step"].depth == pytest.approx(20 * multiple ** (1 / power))


@pytest.mark.parametrize(("depth", "extrapolated"), [(7.9, True), (8.1, False), (63.0, False), (65.0, True)])
def test_a_limit_outside_of_the_measured_depths_is_extrapolated(depth: float, extrapolated: bool):
    assert limits(parting=lambda at: (depth / at) ** 2)["promise"].extrapolated == extrapolated


@pytest.mark.parametrize(
    ("per_block", "normalized", "depth"),
    [(-0.2, False, 35.0), (0.2, False, 35.0), (-0.2, True, 35.0), (0.2, True, 70.0)],
    ids=["decay", "growth", "decay with norms", "growth with norms"],
)
@pytest.mark.parametrize("signal", ["forward", "backward"])
def test_the_signal_is_lost_after_seven_e_folds_and_a_growth_with_norms_after_fourteen(
    signal: str, per_block: float, normalized: bool, depth: float
):
    fields = {f"{signal}_e_folds": lambda at: per_block * at, "normalized": lambda _: normalized}
    assert limits(**fields)[signal].depth == pytest.approx(depth)


@pytest.mark.parametrize(("at_the_end", "found"), [(0.9, []), (1.1, ["forward"])])
def test_a_change_of_less_than_one_e_fold_has_no_limiting_depth(at_the_end: float, found: list[str]):
    assert causes(forward_e_folds=lambda depth: at_the_end * depth / 64) == found


@pytest.mark.parametrize(("at_the_end", "found"), [(3.9, []), (4.1, ["forward"])])
def test_e_folds_that_grow_less_than_half_as_fast_as_depth_have_no_limit(at_the_end: float, found: list[str]):
    assert causes(forward_e_folds=lambda depth: 1 + (at_the_end - 1) * (depth - 8) / 56) == found


@pytest.mark.parametrize(("broken", "found"), [("loss", 16), ("grad_square", 16)])
def test_a_loss_or_a_gradient_that_is_not_finite_is_a_limit(broken: str, found: int):
    limit = limits(**{broken: lambda depth: math.inf if depth >= 16 else 1.0})["non-finite"]
    assert (limit.depth, limit.extrapolated) == (found, False)


def test_a_limit_needs_most_of_the_seeds_and_lies_at_their_geometric_mean():
    one_falls = [
        point(depth, seed=seed, parting=(20 / depth) ** (2 * seed)) for depth in DEPTHS for seed in (0, 1)
    ]
    assert find_depth_limits(one_falls, DEPTHS, "SGD") == ()
    both_fall = [
        point(depth, seed=seed, parting=((20, 25)[seed] / depth) ** 2) for depth in DEPTHS for seed in (0, 1)
    ]
    promise = next(each for each in find_depth_limits(both_fall, DEPTHS, "SGD") if each.cause == "promise")
    assert promise.depth == pytest.approx(math.sqrt(20 * 25))
    assert promise.low is not None
    assert promise.high is not None
    assert promise.low * promise.high == pytest.approx(20 * 25)


@pytest.mark.parametrize(("high", "wide"), [(39.9, False), (40.1, True), (None, False)])
def test_an_interval_decides_nothing_if_it_is_wider_than_from_half_to_twice(high: float | None, wide: bool):
    limit = DepthLimit(cause="step", depth=20, low=10.0, high=high, extrapolated=False, message="")
    assert is_wide(limit) == wide


@pytest.mark.parametrize(
    ("depths", "used"),
    [((4, 8, 16, 32), (8, 16, 32)), ((2, 4, 7, 8, 16), (7, 8, 16)), ((4, 8), (4, 8)), (DEPTHS, DEPTHS)],
    ids=str,
)
def test_a_law_is_fitted_on_the_deeper_part(depths: tuple[int, ...], used: tuple[int, ...]):
    assert deeper_part(depths) == used


def test_a_law_that_falls_too_slowly_reaches_no_limit():
    assert crossing({8: 0.0, 16: -0.1}, DEPTHS, math.log(1e-9)) is None
    assert crossing({8: 0.0, 16: 0.1}, DEPTHS, -1.0) is None
    assert crossing({8: 0.0, 16: -math.log(2)}, DEPTHS, -math.log(8)) == pytest.approx(64)


def covered(quantile: float, degrees: int, steps: int = 20_000) -> float:
    """The chance that Student's t lies within +-quantile, by the midpoint rule."""
    scale = math.gamma((degrees + 1) / 2) / math.gamma(degrees / 2) / math.sqrt(degrees * math.pi)
    places = ((step + 0.5) * quantile / steps for step in range(steps))
    density = sum((1 + at**2 / degrees) ** (-(degrees + 1) / 2) for at in places)
    return 2 * scale * density * quantile / steps


@pytest.mark.parametrize("degrees", [*range(1, 13), 29, 30])
def test_an_interval_covers_the_mean_of_normal_samples_in_19_of_20_cases(degrees: int):
    assert covered(student_quantile(degrees), degrees) == pytest.approx(
        0.95, abs=1e-4 if degrees <= 10 else 0.02
    )


def test_the_interval_of_a_mean_shrinks_with_the_root_of_the_number_of_samples():
    interval = mean_interval([1.0, 3.0] * 50)
    assert interval.mean == 2.0
    assert interval.high == pytest.approx(2.0 + 1.96 * 1.005 / 10, rel=1e-3)
    assert interval.low == pytest.approx(2.0 - 1.96 * 1.005 / 10, rel=1e-3)
    assert mean_interval([1.0]).low is None


def test_a_forecast_from_one_model_needs_eight_repeated_blocks():
    enough, too_few = (stack_with_update(shares=[1 / blocks] * blocks) for blocks in (8, 7))
    assert repeated_steps(enough, enough.update)[0].name == "layers.7"
    with pytest.raises(InputError, match="at least 8 repeated blocks"):
        repeated_steps(too_few, too_few.update)


def test_sums_over_the_last_blocks_show_the_power_of_depth():
    update = stack_with_update(shares=[1 / 16] * 16).update
    assert update is not None
    even = exponents_of(update.blocks)
    assert {name: exponent.value for name, exponent in even.items()} == pytest.approx(
        {"grad_square": 1.0, "loss_change": 1.0}
    )
    growing = [replace(each, grad_square=float(2 * n + 1)) for n, each in enumerate(update.blocks)]
    assert exponents_of(growing)["grad_square"].value == pytest.approx(2.0)


def test_limits_of_a_single_model_are_carried_over_by_its_power_of_depth():
    power = Exponent(value=2.0, low=None, high=None, seeds=1, depths=(8, 16))
    measured = point(16, parting=4.0, forward_e_folds=2.0, backward_e_folds=1.0)
    found = {each.cause: each.depth for each in limits_of(measured, 16, {"loss_change": power}, "SGD")}
    assert found == pytest.approx({"promise": 32.0, "step": 64.0, "forward": 56.0})


def test_a_crossing_needs_two_depths():
    assert linear_crossing({4: 1.0, 8: math.nan}, [4, 8], 2.0) is None


def test_a_limit_beyond_every_depth_is_not_named():
    rises = {"loss_change": Exponent(value=0.5, low=None, high=None, seeds=1, depths=DEPTHS)}
    near = limits_of(point(8), 8, rises, "SGD")
    assert near != ()
    assert limits_of(point(8, parting=1e300), 8, rises, "SGD") == ()
