"""The labels of the verdict benchmark depend only on the training curve."""

import math
from dataclasses import replace

import pytest
import torch

from benchmarks.verdicts.data import Task
from benchmarks.verdicts.problem import Problem
from benchmarks.verdicts.truth import MAX_BUDGETS, WINDOW, Run, find_truth, label

DATA = Task(inputs=torch.empty(0), targets=torch.empty(0), classes=2, trivial=1.0, fitted=0.0)
STEPS = 40
SMALL = Problem(
    family="mlp",
    cause="none",
    data="blobs",
    depth=2,
    width=16,
    init="critical",
    rate=0.01,
    batch=32,
    steps=60,
)


def curve(*levels):
    """A run that stays WINDOW steps on each level."""
    return Run(losses=tuple(level for level in levels for _ in range(WINDOW)))


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (curve(1.0, 0.6, 0.3, 0.2), "reached"),
        (curve(1.0, 0.2, 5.0, 9.0), "reached"),
        (curve(1.0, 1.0, 0.9, 0.9), "stuck"),
        (curve(1.0, 1.0, 1.4, 1.4), "stuck"),
        (curve(1.0, 1.0, 2.1, 2.1), "diverged"),
        (curve(1.0, 0.9, 0.9, math.nan), "diverged"),
        (curve(1.0, math.inf), "diverged"),
        (curve(1.0, 0.8, 0.6, 0.5), "borderline"),
        (curve(1.0, 0.9, 0.8, 0.8, 0.6, 0.45), "borderline"),
        (curve(1.0, 0.9, 0.8, 0.8, 0.7, 0.7), "stuck"),
    ],
    ids=str,
)
def test_a_curve_gets_its_label(run, expected):
    assert label(run, DATA, STEPS) == expected


def test_a_single_low_loss_is_not_progress():
    losses = [1.0] * STEPS
    losses[20] = 0.0
    assert label(Run(losses=tuple(losses)), DATA, STEPS) == "stuck"


def test_a_run_that_starts_high_is_measured_from_the_trivial_loss():
    assert label(curve(50.0, 10.0, 3.0, 1.0), DATA, STEPS) == "stuck"


def test_a_healthy_problem_reaches_its_target_before_the_budget_ends():
    truth = find_truth(SMALL)
    assert truth.label == "reached"
    assert truth.steps < SMALL.steps


def test_a_rate_far_too_small_is_stuck_and_one_far_too_large_diverges():
    assert find_truth(replace(SMALL, rate=1e-6)).label == "stuck"
    assert find_truth(replace(SMALL, rate=1e4, optimizer="sgd")).label == "diverged"


def test_a_run_that_only_needs_more_time_is_borderline():
    truth = find_truth(replace(SMALL, rate=0.001))
    assert truth.label == "borderline"
    assert SMALL.steps < truth.steps <= MAX_BUDGETS * SMALL.steps
