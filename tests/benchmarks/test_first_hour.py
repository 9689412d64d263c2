"""The variants of the first hour are what the page says, and are judged as it says."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.first_hour import page
from benchmarks.first_hour.scores import Row, score
from benchmarks.first_hour.text import VOCABULARY, corpus
from benchmarks.first_hour.truth import (
    baseline_trains,
    majority,
    one_batch_losses,
    same_curve,
    shares,
    unanimous,
)
from benchmarks.first_hour.variants import GROUPS, HEALTHY, VARIANTS
from benchmarks.result_files import load

FEW_LAYERS = [name for name, variant in VARIANTS.items() if variant.network.layers <= 4]


def _row(name: str, *, trained: list[float], inside: str, outside: str) -> Row:
    said = {"inside": {"verdict": inside, "codes": []}, "outside": {"verdict": outside, "codes": []}}
    return Row(name=name, group="rate", half="calibration", shares=trained, truth={}, answer=said)


def test_the_hour_has_enough_broken_and_healthy_variants_with_names_of_their_own():
    assert len(VARIANTS) == sum(len(group) for group in GROUPS.values())
    assert len(HEALTHY) >= 12
    assert len(VARIANTS) - len(HEALTHY) >= 44


def test_both_halves_have_healthy_and_broken_variants():
    kinds = {(variant.half, variant in HEALTHY) for variant in VARIANTS.values()}
    assert len(kinds) == 4


@pytest.mark.parametrize("name", FEW_LAYERS)
def test_a_variant_has_the_same_loss_inside_and_outside_of_the_model(name):
    losses = []
    for inside in (True, False):
        program = VARIANTS[name].program(0, inside=inside)
        torch.manual_seed(1)
        losses.append(program.loss(next(program.batches())).item())
    assert losses[0] == pytest.approx(losses[1], nan_ok=True)


def test_a_variant_with_dropout_trains_alike_in_both_ways():
    assert same_curve(VARIANTS["dropout 0.1"])


def test_held_out_text_is_not_trained_on_and_a_constant_prediction_is_better_than_chance():
    text = corpus()
    assert text.unigram_loss() < math.log(VOCABULARY)
    assert torch.equal(next(text.batches(3))[0][:, 1:], next(text.batches(3))[1][:, :-1])


def test_a_share_is_the_part_of_the_gain_that_was_recovered():
    base = {"held_out": {"0": 2.0, "1": 2.0, "2": 2.0}}
    assert shares({"held_out": {"0": 2.5, "1": None, "2": 3.0}}, base, 3.0) == [0.5, -math.inf, 0.0]
    assert majority([0.5, -math.inf, 0.3]) == "poor"
    assert unanimous([0.5, 0.9, 0.6])
    assert not unanimous([0.4, 0.9, 0.6])


def test_a_variant_whose_seeds_disagree_is_not_counted():
    rows = [
        _row("a", trained=[0.9, 0.9, 0.9], inside="trains", outside="poor"),
        _row("b", trained=[0.9, 0.9, 0.1], inside="trains", outside="trains"),
        _row("c", trained=[0.0, 0.0, 0.0], inside="fails", outside="undecided"),
    ]
    inside = score(rows, lambda row: row.answer["inside"]["verdict"] == "trains")
    assert (inside.right, inside.cases, inside.found, inside.false_alarms) == (2, 2, 1, 0)
    assert not rows[0].equal
    assert not rows[2].right("outside")


def test_the_naive_baseline_sees_a_fall_and_a_rise():
    losses = one_batch_losses(VARIANTS["base"])
    assert baseline_trains({"one_batch": losses}, 0.05)
    assert not baseline_trains({"one_batch": losses[::-1]}, 0.0)
    assert not baseline_trains({"one_batch": [4.0, None]}, 0.0)


def test_every_stored_outcome_belongs_to_a_variant_and_both_ways_trained_alike():
    cases = load("first_hour_truth")["cases"]
    assert set(cases) <= set(VARIANTS)
    assert set(load("first_hour")["cases"]) <= set(VARIANTS)
    assert [name for name, case in cases.items() if not case.get("same_curve", True)] == []


def test_a_wrong_verdict_shows_in_the_table():
    right = _row("a", trained=[0.9, 0.9, 0.9], inside="trains", outside="trains")
    wrong = _row("a", trained=[0.9, 0.9, 0.9], inside="trains", outside="fails")
    assert page.all_variants([right]).endswith("| yes |")
    assert page.all_variants([wrong]).endswith("| one way |")
