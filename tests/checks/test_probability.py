"""The probability that a training works follows the first steps, and decides where rules would only guess."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import nn

import leadline
from benchmarks.atlas import fit
from benchmarks.atlas.scores import Row
from leadline.checks import model_checks
from leadline.checks._diagnosis import collect_findings, judge
from leadline.checks._examples import stack_with_update
from leadline.checks._probability import FittedModel, fitted_model, predict, quantities, read_outlook
from leadline.records import Coverage, Profile, ReferenceRun, Rehearsal

COVERED = Coverage(ops=1, ops_known=1, values=1, forward=1, backward=1, gaps=())


def rehearsed(*losses: float, **fields: object) -> Profile:
    rehearsal = Rehearsal(losses=losses, constant=2.0, **fields)
    return replace(stack_with_update(), rehearsal=rehearsal)


def chance(*losses: float, **fields: object) -> float:
    outlook = read_outlook(rehearsed(*losses, **fields))
    assert outlook is not None
    return outlook.probability


def reference(last: float) -> ReferenceRun:
    return ReferenceRun(losses=(2.2, last), lr=1e-2, is_reset=True)


def test_a_loss_that_falls_far_below_a_constant_output_probably_goes_on():
    assert chance(2.2, 0.5) > 0.9
    assert chance(2.2, 2.1) < 0.5


def test_a_training_that_becomes_non_finite_has_little_chance():
    assert chance(2.2, math.nan) < 0.5


@given(st.floats(-0.5, 2.5), st.floats(0.0, 2.5))
def test_a_lower_last_loss_never_lowers_the_chance(first: float, second: float):
    low, high = sorted((first, second))
    assert chance(2.2, low) >= chance(2.2, high)


def test_falling_behind_a_plain_recipe_lowers_the_chance():
    unknown = chance(2.2, 1.5)
    assert chance(2.2, 1.5, references=(reference(0.1),)) < unknown
    assert chance(2.2, 1.5, references=(reference(1.6),)) > unknown


def test_what_does_not_hold_on_other_samples_lowers_the_share_of_the_recipe():
    recipe = ReferenceRun(losses=(2.2, 0.5), lr=1e-2, is_reset=True, held_out=1.0)
    shares = [
        quantities(rehearsed(2.2, 0.5, held_out=loss, held_out_early=loss, references=(recipe,)))
        for loss in (2.5, 1.5, 1.0)
    ]
    assert [each["share of a plain recipe's progress"] for each in shares] == [0.0, 0.5, 1.0]


def test_where_no_recipe_generalizes_only_the_trained_samples_count():
    """Random labels can only be learned by heart."""
    recipe = ReferenceRun(losses=(2.2, 0.5), lr=1e-2, is_reset=True, held_out=3.0)
    measured = quantities(rehearsed(2.2, 0.5, held_out=4.0, held_out_early=4.0, references=(recipe,)))
    assert measured["progress on other samples"] == 0
    assert measured["share of a plain recipe's progress"] == 1.0


def test_a_loss_far_above_a_constant_output_on_other_samples_counts_in_powers_of_ten():
    losses = (0.5, 2.0, 20.0, 2e6, math.nan)
    found = [quantities(rehearsed(2.2, 0.5, held_out=each))["excess on other samples"] for each in losses]
    assert found == [0.0, 0.0, pytest.approx(1.0), 2.0, 2.0]
    assert quantities(rehearsed(2.2, 0.5))["excess on other samples"] == 0.0


def test_other_samples_that_are_easier_do_not_count_as_learned():
    """The loss is stuck at that of a constant output, and half of a small batch may have a lower one."""
    assert quantities(rehearsed(2.2, 2.0, held_out=1.0))["progress on other samples"] == 0.0
    assert quantities(rehearsed(2.2, 1.8, held_out=1.0))["progress on other samples"] == pytest.approx(0.1)


def test_steps_after_half_of_the_loss_is_gone_do_not_count():
    falls = [2.0 - 0.05 * step for step in range(41)]
    early = Rehearsal(losses=(*falls, *[0.0] * 24), constant=2.0)
    assert early.steps == 64
    assert early.steps_to_fall_far == 21
    assert Rehearsal(losses=tuple(falls[:10]), constant=2.0).steps_to_fall_far == 9
    assert Rehearsal(losses=(2.0, 0.1, 1.9, 0.1, 0.1), starts=(2.0, 2.0), constant=2.0).steps_to_fall_far == 4


def test_a_loss_above_that_of_a_fresh_network_is_no_progress():
    fresh = ReferenceRun(losses=(2.3, 1.0), lr=1e-2, is_reset=True)
    same = ReferenceRun(losses=(1e6, 1e5), lr=1e-2, is_reset=False)
    alone = Rehearsal(losses=(1e6, 1e3))
    assert alone.progress > 0.9
    assert replace(alone, references=(same, fresh)).progress < 0


def test_without_a_rehearsal_there_is_no_probability():
    assert quantities(stack_with_update()) is None
    assert read_outlook(stack_with_update()) is None


def test_few_trainings_behind_a_case_move_its_probability_toward_one_half():
    sure = FittedModel(bias=3.0, weights={"progress": 0.0}, covariance=[[0.0, 0.0], [0.0, 0.0]])
    unsure = sure._replace(covariance=[[25.0, 0.0], [0.0, 0.0]])
    measured = {"progress": 0.1}
    assert 0.5 < predict(measured, unsure).probability < predict(measured, sure).probability


def test_a_case_unlike_all_others_is_undecided():
    profile = rehearsed(2.2, 0.5)
    outlook = read_outlook(profile)
    assert outlook is not None
    assert judge(profile, COVERED, (), outlook) == "trains"
    assert judge(profile, COVERED, (), replace(outlook, variance=100.0)) == "undecided"


def test_the_parts_of_the_log_odds_sum_to_the_probability():
    outlook = read_outlook(rehearsed(2.2, 1.5))
    assert outlook is not None
    z = outlook.bias + sum(term.log_odds for term in outlook.terms)
    flattened = z / math.sqrt(1 + math.pi * outlook.variance / 8)
    assert outlook.probability == pytest.approx(1 / (1 + math.exp(-flattened)))


def test_the_stored_model_knows_exactly_the_quantities_that_are_measured():
    measured = quantities(rehearsed(2.2, 1.5))
    assert measured is not None
    assert list(fitted_model().weights) == list(measured)
    assert len(fitted_model().covariance) == len(measured) + 1


def test_where_the_training_probably_works_what_speaks_against_it_is_a_note():
    checks = model_checks()
    profile = rehearsed(2.2, 1.9, 0.4)
    sick = next(check for check in checks if check.code == "U524").sick
    learning = replace(sick, rehearsal=profile.rehearsal)
    outlook = read_outlook(profile)
    (finding,) = [each for each in collect_findings(checks, learning, outlook) if each.code == "U524"]
    assert finding.severity == "info"
    assert "yet 2 steps" in finding.message


def test_a_wrong_question_is_an_error_however_well_the_loss_falls():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    x, y = torch.randn(64, 8), torch.randint(4, (64,))
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    report = leadline.check(model, x, y, lambda output, target: -F.cross_entropy(output, target), adam)
    assert report.verdict == "fails"
    assert report.confidence is None


def test_a_verdict_is_as_sure_as_its_probability():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    x = torch.randn(64, 8)
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    report = leadline.check(model, x, x[:, :4].argmax(1), F.cross_entropy, adam)
    assert report.verdict == "trains"
    assert report.outlook is not None
    assert report.confidence == report.outlook.probability
    assert type(report).from_json(report.to_json()).outlook == report.outlook


def row(family: str, progress: float, *, fails: bool) -> Row:
    answer = {"quantities": {"progress": progress}, "codes": {}}
    return Row(family=family, flaw="x", shares=[0.0 if fails else 1.0], facts={}, answer=answer)


def test_each_family_is_predicted_by_a_model_that_never_saw_it():
    """In the odd family failures and successes are swapped: only a model that was fitted with it could know."""
    usual = [
        row(name, p, fails=fails)
        for name in "abcdef"
        for p, fails in ((0.0, True), (0.1, True), (0.4, False))
    ]
    odd = [row("odd", 0.0, fails=False), row("odd", 0.4, fails=True)]
    predicted = {(each.family, each.fails): p for each, p in fit.leave_one_family_out([*usual, *odd])}
    assert predicted["odd", False] < 0.5 < predicted["odd", True]
    assert predicted["a", True] < 0.5 < predicted["a", False]
