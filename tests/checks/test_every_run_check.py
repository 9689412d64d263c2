"""Laws that every run check keeps: a new check is covered without a new test."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from leadline.checks import model_checks, run_checks
from leadline.checks._check import Check
from leadline.checks._examples import constant, scalar_history
from leadline.checks._history import History
from leadline.checks._loop import LOOP_METRICS
from leadline.records.run import Sample
from tests.support.check_laws import wording_violations

RUN_CHECKS = run_checks()
UNITS = {"loss", "grad_norm", "update_norm", "weight_norm"}  # what has the unit of the loss or of a weight
each_run_check = pytest.mark.parametrize("each", RUN_CHECKS, ids=lambda each: each.name)


@each_run_check
def test_the_sick_example_has_a_metric_that_the_check_needs(each: Check):
    assert any(each.sick.has(name) for name in each.needs)


def test_no_run_check_has_the_code_or_name_of_a_model_check():
    taken = {key for each in model_checks() for key in (each.code, each.name)}
    assert not taken & {key for each in RUN_CHECKS for key in (each.code, each.name)}


def test_what_a_run_check_explains_exists():
    codes = {each.code for each in RUN_CHECKS}
    assert all(set(each.explains) <= codes - {each.code} for each in RUN_CHECKS)


@each_run_check
def test_alerts_say_where_since_when_and_carry_finite_evidence(each: Check):
    for alert in each(each.sick):
        assert (alert.code, alert.name, alert.state) == (each.code, each.name, "raised")
        assert alert.where
        assert alert.since <= alert.step == each.sick.step
        assert alert.evidence
        assert all(map(math.isfinite, alert.evidence.values()))
        assert alert.trend is None or math.isfinite(alert.trend)
        assert alert.layers is None or alert.layers[0] <= alert.layers[1]


@pytest.mark.parametrize("seed", range(20))
@each_run_check
def test_symptoms_of_unusual_histories_say_what_to_do(each: Check, seed: int):
    """Other branches of a check have messages of their own."""
    draw = random.Random(seed)
    odd = [math.nan, 0.0, -1.0, -3.0, 1.0, 1e3]

    def spoil(_: str, number: float) -> float:
        return draw.choice(odd) if draw.random() < 0.02 else number

    for history in (each.sick, each.healthy):
        for symptom in each.look(rewritten(history, spoil)):
            assert wording_violations(symptom) == []


@each_run_check
def test_a_run_check_is_silent_on_an_empty_history(each: Check):
    assert list(each(History())) == []
    assert list(each(scalar_history(700, unheard_of=constant(1.0)))) == []


@each_run_check
def test_a_run_check_does_not_fail_on_non_finite_numbers(each: Check):
    """Any course of what it needs may hold NaN, infinity, zero or a negative number."""
    for value in (math.nan, math.inf, -math.inf, 0.0, -1.0):
        history = rewritten(each.sick, lambda _, number, value=value: value)
        assert all(alert.message for alert in each(history))


@each_run_check
@pytest.mark.parametrize("seed", range(6))
def test_a_run_check_survives_any_mixture_of_numbers(each: Check, seed: int):
    """An error in a check would end the watch, so a check must accept any recording."""
    draw = random.Random(seed)
    odd = [math.nan, math.inf, -math.inf, 0.0, -1.0, -2.0, 1.0, 3e38, 1e-38]
    share = draw.choice([0.02, 0.3, 0.9])

    def spoil(_: str, number: float) -> float:
        return draw.choice(odd) if draw.random() < share else number

    for history in (each.sick, each.healthy):
        assert all(alert.message for alert in each(rewritten(history, spoil)))


@each_run_check
def test_a_second_look_gives_the_same_alerts(each: Check):
    assert list(each(each.sick)) == list(each(each.sick))


@each_run_check
@pytest.mark.parametrize("factor", [2.0**-20, 2.0**13])
def test_the_unit_of_the_loss_and_of_the_weights_does_not_matter(each: Check, factor: float):
    """Multiplying the loss by a constant multiplies loss and gradients; doubling all weights and steps is no news."""

    def scale(name: str, number: float) -> float:
        is_number = number > 0 or name == "loss"  # negative ones of other metrics say why there is none
        return number * factor if name in UNITS and is_number else number

    for history in (each.sick, each.healthy):
        before, after = list(each(history)), list(each(rewritten(history, scale)))
        assert [(a.severity, a.where, a.since, a.layers) for a in before] == [
            (a.severity, a.where, a.since, a.layers) for a in after
        ]


@each_run_check
def test_a_shift_of_all_steps_only_shifts_the_alert(each: Check):
    shifted = rewritten(each.sick, lambda _, number: number, shift=10_000)
    for before, after in zip(each(each.sick), each(shifted), strict=True):
        assert (after.since - before.since, after.step - before.step) == (10_000, 10_000)
        assert after.severity == before.severity
        assert after.where == before.where


def rewritten(history: History, change: Callable[[str, float], float], *, shift: int = 0) -> History:
    """The same course with every number changed; what the ring no longer holds is not in it."""
    fresh, samples = History(history.layout), {history.step: ({}, {})}
    for name in NUMBERS:
        found = history.scalars(name)
        for step, value in zip(found.steps, found.values, strict=True):
            samples.setdefault(step, ({}, {}))[0][name] = change(name, value)
    for name in VECTORS:
        for found in (history.spaced(name), history.recent(name)):
            for step, row in zip(found.steps, found.rows, strict=True):
                samples.setdefault(step, ({}, {}))[1][name] = [change(name, value) for value in row]
    for step, (numbers, vectors) in sorted(samples.items()):
        fresh.add(Sample(step=step + shift, scalars=numbers, vectors=vectors))
    return fresh


NUMBERS = (*sorted(UNITS), "lr", "grad_clip", "loss_scale", "non_finite", *LOOP_METRICS)
VECTORS = (
    "grad_norm",
    "update_norm",
    "weight_norm",
    "dead",
    "branch_skip",
    "attention_logit",
    "attention_entropy",
    "head_logit",
    "expert_tokens",
    "expert_grad_norm",
)
