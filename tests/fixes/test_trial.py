"""Trials: the same batches and seeds for everyone, within the budget, and nothing of the user's is touched."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

import leadline
from leadline import Case
from leadline.errors import InputError
from leadline.fixes._engine.comparison import compare, judge_alone, learns
from leadline.fixes._engine.trial import (
    MAX_TRIAL_STEPS,
    MIN_TRIAL_STEPS,
    Batches,
    OutOfTimeError,
    Trials,
    budget_of,
    read_batches,
    seconds_of,
)
from leadline.records import Trial
from tests.support.toy_fixes import Clock


def small(**changes) -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4))
    fields = {"optimizer": torch.optim.Adam(model.parameters()), "loss": nn.functional.mse_loss, **changes}
    return Case(model, torch.randn(8, 4), torch.randn(8, 4), **fields)


def trials(case: Case, budget=None, clock=None) -> Trials:
    return Trials(batches=read_batches(case, 2 * MAX_TRIAL_STEPS), budget=budget_of(budget, clock or Clock()))


def test_two_runs_with_one_seed_are_equal_and_another_seed_is_another_run():
    case = small()
    course = trials(case)
    first, again, other = course.run(case, "a"), course.run(case, "b"), course.run(case, "c", seed=1)
    assert first == again
    assert first != other
    assert len(first) == MAX_TRIAL_STEPS


def test_a_run_leaves_model_optimizer_gradients_and_random_numbers_as_they_were():
    case = small()
    case.model[0].weight.grad = torch.ones_like(case.model[0].weight)
    before = [value.clone() for value in case.model.state_dict().values()]
    state, groups = dict(case.optimizer.state), [dict(group) for group in case.optimizer.param_groups]
    numbers = torch.get_rng_state()
    trials(case).run(case, "a")
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(torch.equal(a, b) for a, b in zip(before, case.model.state_dict().values(), strict=True))
    assert torch.equal(case.model[0].weight.grad, torch.ones_like(case.model[0].weight))
    assert (dict(case.optimizer.state), [dict(group) for group in case.optimizer.param_groups]) == (
        state,
        groups,
    )


def test_a_loss_that_holds_on_to_the_original_is_refused():
    case = small()

    def penalised(output, targets):
        return nn.functional.mse_loss(output, targets) + case.model[0].weight.square().sum()

    leaky = replace(case, loss=penalised)
    with pytest.raises(InputError, match=r"to the original: 0\.weight"):
        trials(leaky).run(leaky, "a")
    assert case.model[0].weight.grad is None


def test_training_stops_at_a_loss_that_is_not_finite():
    case = small()
    case = replace(case, optimizer=torch.optim.SGD(case.model.parameters(), lr=1e9))
    found = trials(case).run(case, "a")
    assert len(found) < MAX_TRIAL_STEPS
    assert not math.isfinite(found[-1])
    assert all(math.isfinite(each) for each in found[:-1])


def test_without_an_optimizer_adam_is_used():
    case = small(optimizer=None)
    assert trials(case).run(case, "a") == trials(small()).run(small(), "a")


def test_an_optimizer_that_needs_a_closure_gets_one():
    case = small()
    case.model.eval()
    lbfgs = torch.optim.LBFGS(case.model.parameters(), lr=0.1)
    found = trials(case).run(Case(case.model, case.inputs, case.targets, case.loss, lbfgs), "a")
    assert len(found) == MAX_TRIAL_STEPS
    assert found[-1] < found[0]


def test_a_step_is_not_begun_after_the_budget():
    case = small()
    course = trials(case, budget=30, clock=Clock(tick=1.0))
    with pytest.raises(OutOfTimeError):
        course.run(case, "a")
    assert course.budget.clock.now < 40


def test_a_budget_makes_trials_shorter_and_all_equally_long():
    case = small()
    course = trials(case, budget=300.0, clock=Clock(tick=0.5))
    first, second = course.run(case, "a"), course.run(case, "b")
    assert MIN_TRIAL_STEPS <= len(first) < MAX_TRIAL_STEPS
    assert len(second) == course.steps


@pytest.mark.parametrize(
    ("given", "seconds"), [(60, 60), ("60s", 60), ("2m", 120), ("1.5 h", 5400), (" 7 ", 7)]
)
def test_a_budget_is_seconds_or_a_number_with_a_unit(given, seconds):
    assert seconds_of(given) == seconds


@pytest.mark.parametrize("given", ["soon", "-3s", 0, "3 days", True, float("nan")])
def test_an_invalid_budget_is_refused(given):
    with pytest.raises(InputError, match="a time budget"):
        seconds_of(given)


def batches(case: Case, items) -> Batches:
    return read_batches(Case(case.model, case.inputs, case.targets, case.loss, batches=items), 3)


def test_batches_are_read_once_and_no_further_than_needed():
    case, numbers = small(), []

    def stream():
        for number in range(100):
            numbers.append(number)
            yield torch.full((2, 4), float(number)), torch.zeros(2, 4)

    found = batches(case, stream())
    assert numbers == [0, 1, 2]
    assert found.fresh(3)
    assert not found.fresh(4)
    assert [int(inputs[0, 0]) for inputs, _ in found.schedule(5, seed=0)] == [0, 1, 2, 0, 1]
    other = [int(inputs[0, 0]) for inputs, _ in found.schedule(5, seed=3)]
    assert sorted(other[:3]) == [0, 1, 2]


def test_loaders_give_pairs_as_lists_and_models_of_keywords_give_dicts():
    x, y = torch.zeros(2, 4), torch.ones(2, 4)
    assert batches(small(), [[x, y]]).each == ((x, y),)
    without = Case(nn.Linear(4, 4), {"input_ids": x}, batches=[{"input_ids": y}])
    assert read_batches(without, 3).each == (({"input_ids": y}, None),)
    pair = Case(nn.Bilinear(4, 4, 1), (x, x), batches=[(y, y)])
    assert read_batches(pair, 3).each == (((y, y), None),)


@pytest.mark.parametrize(
    ("items", "words"), [([], "is empty"), ([torch.zeros(2, 4)], "pairs"), ([(1, 2, 3)], "pairs")]
)
def test_batches_of_another_kind_are_refused(items, words):
    with pytest.raises(InputError, match=words):
        batches(small(), items)


def course_of(losses, noise=()):
    return tuple(value + add for value, add in zip(losses, noise or [0.0] * len(losses), strict=True))


FALLING = [2.0 - 0.02 * step for step in range(60)]
FLAT = [2.0] * 60
WOBBLE = [0.4 * (-1) ** step for step in range(60)]


@pytest.mark.parametrize(
    ("untreated", "treated", "lower", "words"),
    [
        (FLAT, FALLING, True, "without it"),
        (FALLING, FLAT, False, "does not fall"),
        (FALLING, FALLING, False, "noise"),
        (FLAT, [2.0 - 0.0002 * step for step in range(60)], False, "noise"),
        ([50.0 - step / 10 for step in range(60)], FLAT, False, "does not fall"),
        ([2.0, math.nan], FALLING, True, "diverges after 2"),
        (FALLING, [2.0, 1.0, math.inf], False, "diverges after 3 steps"),
        ([math.nan], [math.nan], False, "diverges"),
        (FLAT, course_of([2.0 - 0.001 * step for step in range(60)], WOBBLE), False, "noise"),
    ],
)
def test_who_ends_lower_is_decided_beyond_noise(untreated, treated, lower, words):
    found = compare(Trial(untreated=tuple(untreated), treated=tuple(treated)))
    assert found.lower == lower
    assert words in found.why


def test_a_batch_may_be_a_list_of_one_input():
    batches = [[torch.ones(2, 3)]]
    case = Case(nn.Linear(3, 3), torch.randn(2, 3), loss=lambda y: y.sum(), batches=batches)
    ((inputs, targets),) = read_batches(case, 1).each
    assert targets is None
    assert torch.equal(inputs, torch.ones(2, 3))


def test_a_budget_counts_processor_time_so_that_waiting_costs_nothing():
    budget = budget_of(60)
    time.sleep(0.3)
    assert budget.spent < 0.2


def test_a_repair_says_when_the_budget_was_not_enough():
    case = small()
    diverging = replace(case, optimizer=torch.optim.SGD(case.model.parameters(), lr=1e4))
    notes = leadline.fix(diverging, budget=1e-3).report.notes
    assert any("processor time was not enough" in note for note in notes)


FLAT, FALLING = (2.0,) * 40, tuple(2.0 - 0.04 * step for step in range(40))


def test_a_training_alone_is_judged_by_its_best_constant_output():
    assert judge_alone(FALLING, 2.0).lower
    assert "clearly below" in judge_alone(FALLING, 0.1).why
    unknown = judge_alone(FALLING, None)
    assert not unknown.lower
    assert "no constant output" in unknown.why


@pytest.mark.parametrize(
    ("untreated", "treated", "is_lower", "words"),
    [
        (FLAT, FALLING, True, "2 without it"),
        (FLAT, FLAT, False, "does not fall beyond noise"),
        (FLAT, (*FALLING[:-1], math.nan), False, "diverges after 40 steps"),
        (FLAT, (*FALLING[:30], 9e3, *FALLING[31:]), False, "the loss is unstable with it"),
        ((*FLAT[:-1], math.inf), FALLING, True, "without it training diverges"),
    ],
)
def test_a_trial_is_decided_by_how_both_trainings_end(
    untreated: tuple[float, ...], treated: tuple[float, ...], is_lower: bool, words: str
):
    found = compare(Trial(untreated=untreated, treated=treated))
    assert found.lower == is_lower
    assert words in found.why


def test_losses_that_are_not_finite_are_no_learning():
    assert learns(FALLING)
    assert not learns((*FALLING[:20], math.nan, *FALLING[21:]))
    assert not learns(())
