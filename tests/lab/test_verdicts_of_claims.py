"""How the verdict on a claim follows from estimates and prediction checks."""

from __future__ import annotations

import math
import random
import statistics

import pytest
import torch
from msgspec.structs import replace

from leadline.lab.claim import SeededTrials
from leadline.lab.estimate import (
    above,
    below,
    equals,
    exact,
    full_range,
    geometric,
    mean,
    median,
    near,
    slope,
)
from leadline.records import Experiment, Lab, Plot, PlotLine, PredictionCheck
from leadline.records.experiment import ruling

STEADY = mean([0.99, 1.0, 1.01, 1.0])
WILD = mean([0.1, 2.0, 0.5, 1.4])


def check(*, agrees: bool | None, by: str = "article") -> PredictionCheck:
    value = {True: STEADY, False: mean([5.0, 5.01]), None: WILD}[agrees]
    return equals("x", value, 1.0, within=0.1, origin="synthetic", by=by)  # type: ignore[arg-type]


@pytest.mark.parametrize("agrees", [True, False, None])
def test_a_prediction_agrees_disagrees_or_is_open_if_the_interval_is_too_wide(agrees: bool | None):
    assert check(agrees=agrees).agrees is agrees


def test_a_bound_agrees_only_with_an_interval_entirely_on_its_right_side():
    steady, wild = full_range([0.9, 1.1]), full_range([0.1, 3.0])
    assert below("x", steady, 2.0, origin="").agrees is True
    assert below("x", steady, 0.5, origin="").agrees is False
    assert below("x", wild, 2.0, origin="").agrees is None
    assert above("x", steady, 0.5, origin="").agrees is True
    assert above("x", steady, 2.0, origin="").agrees is False
    assert above("x", wild, 2.0, origin="").agrees is None


@pytest.mark.parametrize(
    "make",
    [
        lambda e: exact("x", e),
        lambda e: above("x", e, 0.0, origin=""),
        lambda e: near("x", e, 1.0, room=9.0, origin=""),
    ],
)
def test_nan_confirms_nothing(make):
    assert make(mean([math.nan, 1.0])).agrees is False


@pytest.mark.parametrize(
    ("article", "correction", "verdict"),
    [
        ([True, True], [], "holds"),
        ([True, False], [True], "holds under conditions"),
        ([False, False], [True], "false as stated"),
        ([True, True], [False], "unexplained"),
        ([True, None], [True], "undecided"),
        ([False], [None], "undecided"),
        ([], [True], "undecided"),
    ],
)
def test_the_ruling_follows_from_the_checks(article, correction, verdict):
    checks = [check(agrees=each) for each in article] + [
        check(agrees=each, by="correction") for each in correction
    ]
    assert ruling(checks) == verdict


def test_an_interval_covers_the_mean_in_about_95_of_100_cases():
    draw = random.Random(0)
    runs = [mean([draw.gauss(3.0, 2.0) for _ in range(6)]) for _ in range(400)]
    covered = sum(found.low <= 3.0 <= found.high for found in runs)
    assert abs(covered / 400 - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 400)


def test_the_bootstrap_of_the_median_covers_it():
    draw = random.Random(1)
    runs = [median([draw.expovariate(1.0) for _ in range(30)]) for _ in range(60)]
    assert sum(found.low <= math.log(2) <= found.high for found in runs) >= 50


def test_a_power_law_has_its_exponent_and_a_factor_its_geometric_mean():
    assert slope([{8: 2 * 8**1.5, 64: 2 * 64**1.5}]).value == pytest.approx(1.5)
    assert math.isnan(slope([{8: 0.0, 64: -1.0}]).value)
    assert geometric([0.1, 10.0]).value == pytest.approx(1.0)
    assert geometric([0.0, 10.0]).low == 0.0
    assert full_range([3.0, 1.0, 2.0]).value == statistics.median([1.0, 2.0, 3.0])


def test_each_run_has_its_own_seed_and_equal_seeds_give_equal_runs():
    first, again = (SeededTrials(seeds=3).runs(lambda: torch.rand(()).item()) for _ in range(2))
    assert first == again
    assert len(set(first)) == 3


def test_a_lab_survives_json():
    plot = Plot(
        title="t", across="layers", names=("1", "2"), lines=(PlotLine(label="a", values=(1.0, None)),)
    )
    found = Experiment(
        code="S0-1",
        claim="c",
        article="a",
        test="t",
        truth="w",
        published="holds",
        verdict="holds",
        checks=(replace(check(agrees=True), measured=math.nan),),
        plots=(plot,),
        seeds=3,
        seconds=0.1,
    )
    lab = Lab(leadline="0", torch="2", experiments=(found,))
    read = Lab.from_json(lab.to_json())
    assert math.isnan(read.experiments[0].checks[0].measured)
    assert read.experiments[0].plots == (plot,)
    assert read.to_json() == lab.to_json()
