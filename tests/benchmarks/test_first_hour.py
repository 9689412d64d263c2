"""The variants of the first hour are what the page says, and are judged as it says."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.first_hour import page
from benchmarks.first_hour.program import TrainingProgram, is_right
from benchmarks.first_hour.scores import Row, score
from benchmarks.first_hour.second_round import (
    MAX_EPISODE_STEPS,
    Agent,
    Cart,
    play,
    sound_batches,
    word_batches,
)
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


def test_a_healthy_program_must_train_without_a_code_and_a_sick_one_must_not_be_said_to_train():
    assert is_right("quiet", {"verdict": "trains", "codes": []})
    assert not is_right("quiet", {"verdict": "trains", "codes": ["I308"]})
    assert not is_right("quiet", {"error": "TypeError: no"})
    assert is_right("alarm", {"verdict": "poor", "codes": ["T803"]})
    assert not is_right("alarm", {"verdict": "undecided", "codes": []})


def test_a_program_that_raises_is_shown_with_its_error():
    def fail():
        raise ValueError("no batch\nmore")

    observation = TrainingProgram(name="a", expected="quiet", run=fail).observe()
    assert observation == {"error": "ValueError: no batch"}
    row = {"expected": "quiet", "right": False, **observation}
    assert page.programs({"a": row}).endswith("| a | quiet |  | ValueError: no batch | no |")


def test_a_pole_that_is_pushed_one_way_falls_and_its_episode_ends():
    cart, agent = Cart(0), Agent()
    cart.reset()
    while not cart.push(right=True)[1]:
        pass
    assert cart.age < 20
    list(play(agent, cart, 0.0))
    assert len(agent.memory) == cart.age < MAX_EPISODE_STEPS
    assert agent.memory[-1][-1]


def test_the_data_of_the_second_round_has_inputs_and_what_comes_next():
    words, following = next(word_batches())
    assert torch.equal(words[1:].reshape(-1), following[: words[1:].numel()])
    sounds, labels = next(sound_batches())
    assert sounds.shape[0] == len(labels)
