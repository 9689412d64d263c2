"""A rehearsal overrides the prediction of a check, and nothing else does."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from leadline.checks import model_checks
from leadline.checks._examples import stack_with_update
from leadline.records import Rehearsal
from leadline.records.rehearsal import MAX_REHEARSAL_STEPS, MIN_FAILING_STEPS

LEARNS = Rehearsal(losses=(2.3, 2.2, 1.7), constant=2.2)
FALLS = Rehearsal(losses=(2.3, 2.1, 1.9), constant=2.2)
THROWN = Rehearsal(losses=(2.3, 60.0, 1.4), constant=2.2)
STALLS = Rehearsal(losses=(2.3, 2.29, 2.28), constant=2.2)
FORECASTS = [check for check in model_checks() if check.refuted_by]


def severities(check, rehearsal):
    return [finding.severity for finding in check(replace(check.sick, rehearsal=rehearsal))]


@pytest.mark.parametrize("check", FORECASTS, ids=lambda check: check.code)
def test_a_network_that_learns_turns_findings_that_predicted_otherwise_into_notes(check):
    assert set(severities(check, LEARNS)) == {"info"}
    assert severities(check, STALLS) == severities(check, None)


@pytest.mark.parametrize("check", FORECASTS, ids=lambda check: check.code)
def test_a_rehearsal_with_a_spike_refutes_nothing(check):
    assert severities(check, THROWN) == severities(check, None)


@pytest.mark.parametrize("check", FORECASTS, ids=lambda check: check.code)
def test_a_loss_that_falls_step_by_step_refutes_only_that_steps_are_too_long(check):
    expected = {"info"} if check.refuted_by == "falling" else set(severities(check, None))
    assert set(severities(check, FALLS)) == expected


@pytest.mark.parametrize(
    "check", [r for r in model_checks() if not r.refuted_by], ids=lambda check: check.code
)
def test_a_finding_about_a_broken_part_is_not_refuted_by_learning(check):
    before = list(check(check.sick))
    after = list(check(replace(check.sick, rehearsal=LEARNS)))
    assert after == before or check.code in (
        "B208",
        "U509",
        "U525",
        "U530",
        "U531",
        "U535",
    )  # these read the rehearsal


def test_a_refuted_finding_says_what_refuted_it():
    (check,) = [each for each in model_checks() if each.code == "B201"]
    (found,) = check(replace(check.sick, rehearsal=LEARNS))
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


def test_the_steps_to_a_constant_output_are_extrapolated_from_the_last_pace():
    assert Rehearsal(losses=(3.0, 2.9), constant=2.4).steps_to_constant == pytest.approx(5)
    assert Rehearsal(losses=(3.0, 3.1), constant=2.4).steps_to_constant == math.inf
    assert Rehearsal(losses=(3.0, 2.3), constant=2.4).steps_to_constant == 0
    assert Rehearsal(losses=(3.0, 2.9)).steps_to_constant == 0


def test_a_network_thousands_of_steps_from_a_constant_output_is_too_slow():
    (check,) = [each for each in model_checks() if each.code == "U522"]
    slow = Rehearsal(losses=(4.9, 4.899, 4.898), constant=3.4)
    assert severities(check, slow) == ["warning"]
    (found,) = check(replace(check.healthy, rehearsal=slow))
    assert "1498 more" in found.message
    assert not list(check(replace(check.healthy, rehearsal=STALLS)))


def test_a_deep_post_norm_stack_that_makes_no_progress_is_a_warning_at_any_rate():
    (check,) = [each for each in model_checks() if each.code == "R402"]
    assert not list(check(replace(check.healthy, rehearsal=LEARNS)))
    (found,) = check(replace(check.healthy, rehearsal=STALLS))
    assert found.severity == "warning"


@pytest.mark.parametrize("check", FORECASTS, ids=lambda check: check.code)
def test_a_network_that_has_learned_refutes_forecasts_unless_an_optimizer_is_to_go_on(check):
    trained = replace(check.sick, loss=0.5, constant_loss=2.2, optimizer=None)
    assert {finding.severity for finding in check(trained)} <= {"info"}
    untrained = replace(check.sick, loss=2.3, constant_loss=2.2, optimizer=None)
    plain = replace(check.sick, optimizer=None)
    assert [each.severity for each in check(untrained)] == [each.severity for each in check(plain)]


def test_learning_that_begins_late_refutes_only_on_several_batches():
    late = Rehearsal(losses=(2.3, *[2.2] * MIN_FAILING_STEPS, 1.0), constant=2.2)
    assert late.learned
    several = replace(late, losses=(*late.losses, 1.0, 1.0, 1.0), starts=(2.3, 2.3, 2.3, 2.3))
    for check in FORECASTS:
        assert severities(check, late) == severities(check, None)
        assert set(severities(check, several)) == {"info"}


def test_a_loss_that_comes_back_from_a_spike_and_goes_on_has_learned():
    spike = (2.3, 60.0, 20.0, *[2.0 - 0.05 * step for step in range(20)])
    assert Rehearsal(losses=spike, starts=(2.3, 2.3), constant=2.2).learned
    assert not Rehearsal(losses=spike[:4], starts=(2.3, 2.3), constant=2.2).learned
    assert not Rehearsal(losses=spike, constant=2.2).learned  # one batch can be learned by heart


def test_a_loss_that_approaches_a_constant_output_from_above_is_not_stuck():
    """As networks do that start with large outputs: a neural ODE, deep sets, a factorization."""
    approach = [1.0 + 6.0 * math.exp(-step / 100) for step in range(MAX_REHEARSAL_STEPS + 1)]
    assert not Rehearsal(losses=tuple(approach), constant=1.0).is_stuck
    slowing = [1.0 + 600.0 / (1 + step / 4) for step in range(MAX_REHEARSAL_STEPS + 1)]
    assert Rehearsal(losses=tuple(slowing), constant=1.0).is_stuck


def test_ups_and_downs_that_settle_are_not_restless():
    falling = [3.0 * 0.9**step * (1.5 if step % 2 else 1.0) for step in range(17)]
    assert Rehearsal(losses=tuple(falling), constant=0.1).rise > 1.3
    assert not Rehearsal(losses=tuple(falling), constant=0.1).is_restless
    assert Rehearsal(losses=(3.0, *[4.5, 3.0] * 8), constant=0.1).is_restless


def test_with_several_batches_each_loss_is_compared_with_its_own_batch():
    two = Rehearsal(losses=(4.0, 1.0, 3.0, 0.5), starts=(4.0, 1.0), constant=2.0)
    assert two.rise == 1
    assert (two.first, two.last) == (2.5, 1.75)
    assert not two.has_spike
    assert Rehearsal(losses=(math.nan,), starts=(math.nan, 1.0)).rise == math.inf


def test_no_rehearsal_that_ends_above_its_start_passes():
    steady = tuple(2.3 + 0.001 * step for step in range(MAX_REHEARSAL_STEPS + 1))
    for constant in (None, 2.2, 2.4):
        for losses in (steady, (2.3, 9.0, *[2.35] * 20)):
            profile = replace(stack_with_update(), rehearsal=Rehearsal(losses=losses, constant=constant))
            findings = [finding for check in model_checks() for finding in check(profile)]
            assert {"U509", "U522", "U525"} & {finding.code for finding in findings}


def test_a_network_that_began_below_a_constant_output_is_not_stuck_there():
    assert not Rehearsal(losses=(0.5,) * (MAX_REHEARSAL_STEPS + 1), constant=2.2).is_stuck


def test_progress_is_counted_down_to_the_loss_below_which_no_output_gets():
    assert Rehearsal(losses=(2.3, 1.9), constant=2.2, floor=1.6).progress == pytest.approx(0.5)
