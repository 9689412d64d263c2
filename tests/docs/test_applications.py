"""The applications do what they say: a verdict that warns, a repair, a better score."""

from importlib import import_module

import pytest
import torch

from benchmarks.result_files import load
from examples.applications import NAMES
from examples.applications.application import run_application
from examples.applications.cart_pole import critic_loss, experience
from examples.applications.vowels import FORMANTS, SAMPLES, SAMPLING_RATE, vowels

pytestmark = pytest.mark.long

QUICK = {"letters": 40, "vowels": 50}
STORED = load("applications")["cases"]


def application(name):
    return import_module(f"examples.applications.{name}").APPLICATION


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["letters", pytest.param("vowels", marks=pytest.mark.slow)])
def test_a_network_that_fails_is_repaired_and_scores_better(name):
    result = run_application(application(name), quick=True, steps=QUICK[name])
    assert result.verdict in ("poor", "fails")
    assert result.score[1] > result.score[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", [each for each in NAMES if each not in QUICK])
def test_a_deep_network_gets_the_verdict_of_the_page_and_scores_better_with_its_repair(name):
    result = run_application(application(name), quick=True)
    assert result.verdict == STORED[name]["verdict"]
    assert result.score[1] > result.score[0]


def test_every_application_has_a_stored_run():
    assert set(STORED) == set(NAMES)


@pytest.mark.parametrize("name", STORED)
def test_in_the_stored_runs_the_repaired_network_scores_better(name):
    before, after = STORED[name]["score"]
    assert after > before
    assert STORED[name]["repair"]


@pytest.mark.parametrize("name", NAMES)
def test_a_script_says_how_to_run_it(name):
    assert f"python -m examples.applications.{name}" in import_module(f"examples.applications.{name}").__doc__


def test_a_synthetic_vowel_rings_at_its_formants():
    waves, which = vowels(400, seed=0)
    spectrum = torch.fft.rfft(waves[which == 2, 0]).abs().mean(0)  # the a: both formants in 600 to 1200 Hz
    hertz = torch.fft.rfftfreq(SAMPLES, 1 / SAMPLING_RATE)
    low, high = FORMANTS[2]
    assert 0.85 * low < float(hertz[spectrum.argmax()]) < 1.15 * high


def test_the_critic_is_judged_by_the_action_that_was_taken():
    values = torch.tensor([[1.0, 5.0]])
    assert critic_loss(values, torch.tensor([[1.0, 5.0]])) == 0
    assert critic_loss(values, torch.tensor([[0.0, 5.0]])) == 16


def test_the_experience_has_longer_returns_farther_from_the_fall():
    states, actions, returns = experience()
    assert len(states) == len(actions) == len(returns)
    assert abs(float(returns.mean())) < 1e-5
    assert returns[0] > returns[-1]  # the first state of an episode, the last before a fall
