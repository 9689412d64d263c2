"""Checks that tell why the first steps learn little, on either side of their limits."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import nn

import leadline
from leadline.checks import model_checks
from leadline.checks._examples import (
    profile_of,
    stack_with,
    stack_with_step_size,
    stack_with_update,
)
from leadline.records import Finding, Head, ModelFacts, Optimizer, Profile, Rehearsal
from tests.support.check_laws import wording_violations

CHECKS = {check.code: check for check in model_checks()}


def findings(code: str, profile: Profile) -> list[Finding]:
    """The findings of one check, whose wording keeps the laws."""
    found = list(CHECKS[code](profile))
    assert [wording_violations(each) for each in found] == [[]] * len(found)
    return found


def stepped(eps: float, *, gradient: float, optimizer: str = "Adam") -> Profile:
    """A step of an optimizer with this eps, where each entry of the gradient has this size."""
    profile = stack_with_step_size(optimizer=optimizer)
    group = replace(profile.optimizer.groups[0], options={"eps": eps})
    steps = [replace(each, grad_norm=gradient * math.sqrt(each.count)) for each in profile.update.parameters]
    return replace(
        profile,
        optimizer=Optimizer(name=optimizer, groups=(group,), steps=0),
        update=replace(profile.update, parameters=tuple(steps)),
    )


@pytest.mark.parametrize(("eps", "found"), [(9e-3, 0), (1.1e-2, 1)])
def test_an_eps_of_more_than_ten_gradients_limits_the_step(eps: float, found: int):
    assert len(findings("U534", stepped(eps, gradient=1e-3))) == found


def test_the_message_says_which_part_of_the_rate_is_left():
    (finding,) = findings("U534", stepped(0.099, gradient=1e-3))
    assert "1/1e+02 of its learning rate" in finding.message
    assert finding.evidence["eps_over_gradient"] == pytest.approx(99)


@pytest.mark.parametrize("eps", [1e-8, 1e-6])
def test_tiny_gradients_are_not_blamed_on_a_usual_eps(eps: float):
    assert not findings("U534", stepped(eps, gradient=1e-12))


@pytest.mark.parametrize("optimizer", ["SGD", "Muon", "Adafactor"])
def test_only_optimizers_that_divide_by_a_root_mean_square_are_limited_by_eps(optimizer: str):
    assert not findings("U534", stepped(1.0, gradient=1e-3, optimizer=optimizer))


def test_a_large_eps_is_the_cause_of_crawling_steps_in_a_real_network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    inputs = torch.randn(64, 8)
    targets = inputs[:, :1] - inputs[:, 1:2]
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, eps=10.0)
    report = leadline.check(model, inputs, targets, F.mse_loss, optimizer=adam)
    assert report.verdict == "poor"
    assert {each.code: each.explained_by for each in report.findings}["U522"] == "U534"


def judged(held_out: float, in_training: float) -> Profile:
    rehearsal = Rehearsal(
        losses=(2.3, 1.0), constant=2.0, held_out=held_out, held_out_in_training=in_training
    )
    return replace(stack_with_update(), rehearsal=rehearsal)


@pytest.mark.parametrize(
    ("held_out", "in_training", "found"),
    [
        pytest.param(2.0, 1.59, 1, id="learned in training mode alone"),
        pytest.param(1.99, 1.59, 0, id="learned a little in evaluation mode"),
        pytest.param(2.0, 1.61, 0, id="learned too little in training mode"),
    ],
)
def test_a_gap_is_reported_if_only_training_mode_beats_a_constant_output(
    held_out: float, in_training: float, found: int
):
    assert len(findings("U535", judged(held_out, in_training))) == found


def test_a_loss_that_is_infinite_in_evaluation_mode_is_a_gap():
    assert findings("U535", judged(math.inf, 0.5))


def dropping(rate: float, last: float) -> Profile:
    rehearsal = Rehearsal(losses=(2.3, 2.25, last), constant=2.2)
    return replace(
        stack_with_update(),
        facts=replace(stack_with(ModelFacts()).facts, dropout=rate),
        rehearsal=rehearsal,
    )


@pytest.mark.parametrize(
    ("rate", "last", "found"), [(0.79, 2.22, 0), (0.81, 2.22, 1), (0.81, 0.5, 0), (1.0, 2.22, 0)]
)
def test_much_dropout_is_blamed_only_where_the_first_steps_fail(rate: float, last: float, found: int):
    assert len(findings("F110", dropping(rate, last))) == found


def started(first: float, **fields: float) -> Profile:
    rehearsal = Rehearsal(losses=(first, first), **fields)
    return replace(stack_with_update(), rehearsal=rehearsal)


@pytest.mark.parametrize("known", ["constant", "fresh"])
@pytest.mark.parametrize(("first", "found"), [(199.0, 0), (201.0, 1), (math.inf, 0)])
def test_a_first_loss_of_a_hundred_times_the_loss_to_beat_is_far_off(known: str, first: float, found: int):
    assert len(findings("I308", started(first, **{known: 2.0}))) == found


def test_a_loss_below_zero_has_no_ratio_to_the_loss_to_beat():
    assert not findings("I308", started(500.0, constant=-1.0))


def test_cross_entropy_is_compared_with_guessing_and_not_with_the_constant():
    head = Head(loss="cross_entropy", value=2.5, classes=10, logit_ms=1.0, logit_max=3.0, behind="")
    profile = replace(started(3000.0, constant=2.0), facts=ModelFacts(head=head))
    assert not findings("I308", profile)


def test_a_growth_that_a_cliff_undoes_is_not_a_law():
    fall = [math.exp(-4.0 * index) for index in range(8)]
    undone = [*fall, *[3.0 * fall[0]] * 2]
    falls_on = [*fall, *[fall[-1]] * 2]
    assert not [
        each for each in findings("F101", profile_of(undone, [1.0] * len(undone))) if each.severity != "info"
    ]
    assert findings("F102", profile_of(falls_on, [1.0] * len(falls_on)))
