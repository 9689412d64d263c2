"""Each baseline of the verdict benchmark can fire and can be silent, at the thresholds its authors published."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from benchmarks.verdicts import baselines
from benchmarks.verdicts.observation import (
    STEPS,
    ActivationRecord,
    ParameterRecord,
    StepRecord,
    activation_record,
    observe,
)
from benchmarks.verdicts.problem import Problem

SMALL = Problem(
    family="mlp", cause="none", data="blobs", depth=2, width=16, init="critical", rate=0.01, batch=32
)
WEIGHT = ParameterRecord(
    name="w",
    matrix=True,
    count=100,
    grad_norm=0.1,
    grad_mean_abs=0.01,
    grad_zero_share=0.0,
    grad_spread=0.05,
    update_ratio=1e-3,
)
RELU = ActivationRecord(
    name="a",
    kind="ReLU",
    near_zero=0.4,
    near_one=0.3,
    inactive_units=0.1,
    saturated_units=0.0,
    input_variance=1.0,
)


def seen(first=None, activation=None, losses=None, last=None):
    """Steps of a network with two matrices and two activations, healthy except for the arguments."""
    parameters = (replace(WEIGHT, **(first or {})), replace(WEIGHT, **(last or {})))
    activations = (RELU, replace(RELU, **(activation or {})))
    falling = losses or [2.0 - 0.05 * i for i in range(STEPS)]
    finite = all(p.grad_norm == p.grad_norm for p in parameters)
    return tuple(
        StepRecord(loss=now, finite=finite and now == now, parameters=parameters, activations=activations)
        for now in falling
    )


HEALTHY = seen()
NAN = float("nan")
FLAT = [2.0] * STEPS
SICK = [
    (baselines.autotrainer, seen(first={"grad_norm": 9e-5}, last={"grad_norm": 0.1})),
    (baselines.autotrainer, seen(first={"grad_norm": 7.1}, last={"grad_norm": 0.1})),
    (baselines.autotrainer, seen(first={"grad_zero_share": 0.9}, last={"grad_zero_share": 0.5})),
    (baselines.autotrainer, seen(first={"grad_norm": NAN})),
    (baselines.sagemaker, seen(first={"grad_mean_abs": 9e-8})),
    (baselines.sagemaker, seen(activation={"inactive_units": 0.51})),
    (baselines.sagemaker, seen(activation={"kind": "Tanh", "saturated_units": 0.51})),
    (baselines.sagemaker, seen(first={"update_ratio": 11.0})),
    (baselines.sagemaker, seen(losses=FLAT)),
    (baselines.sagemaker, seen(losses=[2.0, NAN])),
    (baselines.loss_not_decreasing, seen(losses=FLAT)),
    (baselines.poor_initialization, seen(activation={"input_variance": 10.1})),
    (baselines.poor_initialization, seen(first={"grad_spread": 9e-4})),
    (baselines.poor_initialization, seen(losses=FLAT)),
    (baselines.torchmortem, seen(first={"grad_norm": 9e-4})),
    (baselines.torchmortem, seen(last={"grad_norm": 1001.0})),
    (baselines.torchmortem, seen(activation={"near_zero": 0.51})),
    (baselines.torchmortem, seen(activation={"near_one": 0.51})),
    (baselines.torchmortem, seen(first={"update_ratio": 9e-6})),
    (baselines.torchmortem, seen(first={"grad_norm": 9e-9}, last={"grad_norm": 1e-8})),
    (baselines.torchmortem_critical, seen(first={"update_ratio": 0.11})),
    (baselines.torchmortem_critical, seen(first={"grad_norm": 9e-5})),
]
ALMOST = [
    (baselines.autotrainer, seen(first={"grad_norm": 1.1e-4}, last={"grad_norm": 0.1})),
    (baselines.autotrainer, seen(first={"grad_norm": 6.9}, last={"grad_norm": 0.1})),
    (baselines.sagemaker, seen(first={"grad_mean_abs": 1.1e-7}, activation={"inactive_units": 0.5})),
    (baselines.sagemaker, seen(activation={"kind": "GELU", "inactive_units": 0.9})),
    (baselines.poor_initialization, seen(activation={"input_variance": 9.9}, first={"grad_spread": 1.1e-3})),
    (baselines.torchmortem, seen(first={"grad_norm": 1.1e-3, "update_ratio": 1.1e-5})),
    (baselines.torchmortem_critical, seen(first={"grad_norm": 1.1e-4, "update_ratio": 1e-6})),
]
MONITORS = [*baselines.MONITORS.values(), baselines.loss_not_decreasing]


@pytest.mark.parametrize("baseline", MONITORS, ids=lambda b: b.__name__)
def test_a_baseline_is_silent_on_a_healthy_run(baseline):
    assert not baseline(SMALL, HEALTHY)
    assert not baseline(SMALL, HEALTHY[:1])


@pytest.mark.parametrize(("baseline", "run"), SICK, ids=lambda v: getattr(v, "__name__", ""))
def test_a_baseline_fires_beyond_its_threshold(baseline, run):
    assert baseline(SMALL, run)


@pytest.mark.parametrize(("baseline", "run"), ALMOST, ids=lambda v: getattr(v, "__name__", ""))
def test_a_baseline_is_silent_just_short_of_its_threshold(baseline, run):
    assert not baseline(SMALL, run)


def test_every_baseline_is_shown_to_fire():
    assert {baseline for baseline, _ in SICK} == set(MONITORS)


def test_the_rule_of_thumb_depends_on_depth_alone():
    assert baselines.deep_and_plain(replace(SMALL, depth=21), HEALTHY)
    assert not baselines.deep_and_plain(replace(SMALL, depth=20), HEALTHY)
    assert not baselines.deep_and_plain(replace(SMALL, depth=99, scheme="pre"), HEALTHY)
    assert baselines.deep_and_plain(replace(SMALL, family="rnn", depth=1, scheme="rnn/32"), HEALTHY)
    assert not baselines.deep_and_plain(replace(SMALL, family="rnn", depth=1, scheme="rnn/8"), HEALTHY)


def test_the_trivial_baseline_never_fires():
    assert not any(baselines.always_trains(SMALL, run) for _, run in SICK)


def test_an_observation_has_a_record_per_step_and_parameter():
    steps = observe(SMALL)
    assert len(steps) == STEPS
    assert [p.name for p in steps[0].parameters if p.matrix] == ["0.0.weight", "1.0.weight", "2.weight"]
    assert [a.kind for a in steps[0].activations] == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]
    assert 0 < steps[0].parameters[0].update_ratio < 1
    assert set(baselines.baseline_verdicts(SMALL, steps)) == set(baselines.NAMES)


def test_activity_is_measured_per_unit():
    x = torch.tensor([[-1.0, 2.0, 30.0], [-2.0, 0.5, 40.0]])
    relu, tanh = (
        activation_record("r", nn.ReLU(), x, x.relu()),
        activation_record("t", nn.Tanh(), x, x.tanh()),
    )
    assert relu.inactive_units == pytest.approx(1 / 3)
    assert tanh.saturated_units == pytest.approx(1 / 3)
    assert relu.near_zero == pytest.approx(2 / 6)
