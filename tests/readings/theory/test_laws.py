"""Laws of theory: every op has a standing, no model makes it raise, and fields keep what they must keep."""

from __future__ import annotations

import math

import pytest
import torch
from _pytest.mark.structures import ParameterSet
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import leadline
from leadline.nn.activations import quadrature_nodes
from leadline.ops.table import NEUTRAL, OP_TABLE
from leadline.readings.theory import quadrature
from leadline.readings.theory.field import (
    RandomField,
    averaged,
    broadcast,
    independent,
    mean_pair_moment,
    permuted,
    reshaped,
    unbroadcast,
)
from leadline.readings.theory.moment_rule import MomentRule
from leadline.readings.theory.moments import find_moment_rule, moment_rules
from leadline.readings.theory.prediction import first_floating, predict, predict_moments
from leadline.tracer.trace import trace
from tests.support.zoo import Specimen, animals

LOADS = ("hf-", "compiled-")


def test_the_table_names_exactly_the_moment_rules_that_exist():
    named = {row.moment_rule for row in OP_TABLE} - {None, NEUTRAL}
    assert named == moment_rules().keys()


def test_an_op_has_a_rule_or_is_neutral_or_unknown():
    for row in OP_TABLE:
        has_rule = row.moment_rule not in (None, NEUTRAL)
        assert all((find_moment_rule(name) is not None) == has_rule for name in row.names)
    assert find_moment_rule("frobnicate") is None


def test_at_most_a_third_of_the_ops_are_unknown_to_theory():
    names = [name for row in OP_TABLE for name in row.names]
    unknown = [name for row in OP_TABLE if row.moment_rule is None for name in row.names]
    assert len(unknown) < 0.35 * len(names), unknown


@pytest.mark.parametrize("rule", moment_rules().values(), ids=lambda rule: rule.name)
def test_every_rule_says_what_it_does(rule: MomentRule):
    assert rule.apply.__doc__


def specimens() -> list[ParameterSet]:
    """All but the deep ones; `slow` are those that load a library of models or a compiler."""
    found = animals(without=["deep"])
    return [
        pytest.param(*each.values, id=each.id, marks=[*each.marks, pytest.mark.slow])
        if str(each.id).startswith(LOADS)
        else each
        for each in found
    ]


@pytest.mark.parametrize("animal", specimens())
def test_no_specimen_makes_a_rule_raise(animal: Specimen):
    case = animal()
    seen = trace(case.model, case.inputs, case.targets, loss=case.loss)
    found = predict(seen)
    said = [*found.forward.refusals.values(), *found.backward.refusals.values()]
    assert [each for each in said if each.startswith("unexpected")] == []
    filled = predict_moments(seen)
    assert [op.index for op in filled.ops] == [op.index for op in seen.ops]
    predicted = [op.forward_ms_predicted for op in filled.ops if op.forward_ms_predicted is not None]
    assert all(math.isfinite(each) and each >= 0 for each in predicted)


def test_prediction_leaves_the_random_state_unchanged():
    layer = torch.nn.Linear(8, 8)
    before = torch.get_rng_state()
    seen = trace(layer, torch.ones(4, 8), loss=lambda out: out.softmax(-1).square().mean())
    predict(seen)
    assert torch.equal(before, torch.get_rng_state())


def test_rules_cover_the_first_floating_output_of_an_op():
    seen = trace(torch.nn.Linear(8, 8), torch.randn(4, 8), loss=lambda out: out.square().mean())
    assert first_floating(seen, seen.ops[0]) == seen.ops[0].outputs[0]


shapes = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)
numbers = st.floats(0.01, 10.0)


@given(shapes, st.floats(-2.0, 2.0), numbers)
def test_the_mean_over_all_axes_has_the_variance_of_a_mean(shape: tuple[int, ...], mean: float, var: float):
    field = independent(shape, mean, mean**2 + var)
    expected = mean**2 + var / math.prod(shape)
    assert mean_pair_moment(field, range(len(shape))) == pytest.approx(expected)


@given(shapes, numbers)
def test_reshaping_and_back_keeps_an_independent_field(shape: tuple[int, ...], ms: float):
    field = independent(shape, 0.0, ms)
    flat = reshaped(field, (math.prod(shape),))
    assert flat.ms == field.ms
    assert reshaped(flat, shape).share == pytest.approx(field.share)


@given(st.permutations([0, 1, 2]))
def test_permuting_moves_shares_with_their_axes(order: list[int]):
    field = reshaped(independent((2, 3, 4), 0.5, 1.0), (2, 3, 4))
    moved = permuted(field, order)
    assert moved.shape == tuple(field.shape[axis] for axis in order)
    assert permuted(moved, [order.index(axis) for axis in range(3)]) == field


@settings(max_examples=25)
@given(st.integers(2, 6), numbers)
def test_gradients_of_copies_add_up(copies: int, ms: float):
    """n copies of one number: a gradient that is the same for all grows n-fold, independent ones by the root."""
    narrow = independent((1, 5), 0.0, ms)
    wide = broadcast(narrow, (copies, 5))
    assert unbroadcast(wide, (1, 5)).ms == pytest.approx(copies**2 * ms)
    assert unbroadcast(independent((copies, 5), 0.0, ms), (1, 5)).ms == pytest.approx(copies * ms)


def test_the_mean_of_equal_elements_keeps_the_second_moment():
    field = broadcast(independent((1, 4), 0.0, 2.0), (8, 4))
    assert averaged(field, [0], keep=False).ms == pytest.approx(2.0)


@pytest.mark.parametrize("f", [torch.sin, torch.relu, torch.zeros_like], ids=["sin", "relu", "zero"])
def test_a_rank_is_the_mass_of_what_is_smaller_and_half_of_what_is_equal(f):
    z, weights = quadrature_nodes()
    values, some = f(z), f(z[::97])[:, None]
    expected = ((values < some).double() + 0.5 * (values == some).double()) @ weights
    torch.testing.assert_close(quadrature.ranks(values)[::97], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-120, 1e-80, 1.0, 1e80])
def test_the_kurtosis_does_not_depend_on_the_scale(scale):
    assert quadrature.kurtosis(scale * quadrature.nodes()) == pytest.approx(3.0, rel=1e-6)


@given(shapes, st.floats(-2.0, 2.0), st.floats(0.01, 10.0), st.floats(0.0, 1.0))
def test_no_mean_has_a_negative_variance(shape: tuple[int, ...], mean: float, var: float, centered: float):
    """Norms leave positions that share less than their mean squared, at worst by the variance."""
    share = tuple(mean**2 + (var if size == 1 else -centered * var) for size in shape)
    field = RandomField(shape=shape, mean=mean, ms=mean**2 + var, share=share)
    assert mean_pair_moment(field, range(len(shape))) >= mean**2 * (1 - 1e-12)


def test_a_pool_after_several_norms_of_a_tiny_signal_is_predicted():
    def make():
        layers: list[nn.Module] = []
        for _ in range(3):
            conv = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
            nn.init.normal_(conv.weight, std=1e-3)
            layers += [nn.BatchNorm2d(8), conv]
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)]
        model = nn.Sequential(*layers, nn.BatchNorm2d(8), *head)
        return model, torch.randn(2, 8, 64, 64), torch.tensor([0, 1]), torch.nn.functional.cross_entropy

    assert leadline.predict(make).profile.predicted
