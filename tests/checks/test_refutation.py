"""What a rehearsal shows outweighs what a rule foretells, and nothing else."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from leadline.checks import model_checks
from leadline.records import Rehearsal

LEARNS = Rehearsal(losses=(2.3, 2.2, 1.7), constant=2.2)
FALLS = Rehearsal(losses=(2.3, 2.1, 1.9), constant=2.2)
THROWN = Rehearsal(losses=(2.3, 60.0, 1.4), constant=2.2)
STALLS = Rehearsal(losses=(2.3, 2.29, 2.28), constant=2.2)
FORECASTS = [rule for rule in model_checks() if rule.refuted_by]


def severities(rule, rehearsal):
    return [finding.severity for finding in rule(replace(rule.sick, rehearsal=rehearsal))]


@pytest.mark.parametrize("rule", FORECASTS, ids=lambda rule: rule.code)
def test_a_network_that_learns_makes_notes_of_what_foretold_that_it_would_not(rule):
    assert set(severities(rule, LEARNS)) == {"info"}
    assert severities(rule, STALLS) == severities(rule, None)


@pytest.mark.parametrize("rule", FORECASTS, ids=lambda rule: rule.code)
def test_a_network_that_was_thrown_about_refutes_nothing(rule):
    assert severities(rule, THROWN) == severities(rule, None)


@pytest.mark.parametrize("rule", FORECASTS, ids=lambda rule: rule.code)
def test_a_loss_that_falls_step_by_step_refutes_only_that_steps_are_too_long(rule):
    expected = {"info"} if rule.refuted_by == "falling" else set(severities(rule, None))
    assert set(severities(rule, FALLS)) == expected


@pytest.mark.parametrize("rule", [r for r in model_checks() if not r.refuted_by], ids=lambda rule: rule.code)
def test_a_broken_part_is_broken_even_in_a_network_that_learns(rule):
    before = list(rule(rule.sick))
    after = list(rule(replace(rule.sick, rehearsal=LEARNS)))
    assert after == before or rule.code == "U509"


def test_a_refuted_finding_says_what_refuted_it():
    (rule,) = [each for each in model_checks() if each.code == "B201"]
    (found,) = rule(replace(rule.sick, rehearsal=LEARNS))
    assert found.message.endswith("yet 2 steps on this batch took the loss from 2.3 to 1.7")


def test_progress_is_counted_from_the_best_constant_output():
    assert FALLS.progress == pytest.approx((2.2 - 1.9) / 2.2)
    assert Rehearsal(losses=(2.3, 1.15)).progress == pytest.approx(0.5)
    assert Rehearsal(losses=(2.3, math.nan)).progress == -math.inf
    assert Rehearsal(losses=(0.0, 0.0)).progress is None
    assert Rehearsal(losses=(-3.0, -4.0)).progress is None


def test_the_rise_is_measured_from_the_lowest_loss_so_far():
    assert Rehearsal(losses=(4.0, 2.0, 3.0)).rise == pytest.approx(1.5)
    assert Rehearsal(losses=(4.0, 2.0, 1.0)).rise == 1
    assert Rehearsal(losses=(4.0, math.inf)).rise == math.inf


def test_the_way_to_a_constant_output_is_counted_in_steps_at_the_pace_so_far():
    assert Rehearsal(losses=(3.0, 2.9), constant=2.4).steps_to_constant == pytest.approx(5)
    assert Rehearsal(losses=(3.0, 3.1), constant=2.4).steps_to_constant == math.inf
    assert Rehearsal(losses=(3.0, 2.3), constant=2.4).steps_to_constant == 0
    assert Rehearsal(losses=(3.0, 2.9)).steps_to_constant == 0


def test_a_network_hundreds_of_steps_from_a_constant_output_crawls():
    (rule,) = [each for each in model_checks() if each.code == "U522"]
    slow = Rehearsal(losses=(4.9, 4.89, 4.88), constant=3.4)
    assert severities(rule, slow) == ["warning"]
    (found,) = rule(replace(rule.healthy, rehearsal=slow))
    assert "148 more" in found.message
    assert not list(rule(replace(rule.healthy, rehearsal=STALLS)))


def test_a_deep_post_norm_stack_that_does_not_start_is_named_at_any_rate():
    (rule,) = [each for each in model_checks() if each.code == "R402"]
    assert not list(rule(replace(rule.healthy, rehearsal=LEARNS)))
    (found,) = rule(replace(rule.healthy, rehearsal=STALLS))
    assert found.severity == "warning"
