"""The gallery of failures is true: each cause is named, each repair helps, and the page says what was measured."""

import math
from dataclasses import replace
from functools import partial
from importlib import import_module

import pytest
import torch

import leadline
from benchmarks import incidents
from benchmarks.result_files import load
from examples.incidents import ORDER
from examples.incidents.incident import IncidentResult, find_finding, is_improved, run_incident

pytestmark = pytest.mark.long

SMALLER = {"cloned_encoder_layers": 24, "root_scaled_branches_with_adam": 32, "relu_ended_branches": 40}
STEPS = {
    "batch_norm_without_skips": 30,
    "half_precision_attention": 30,
    "decayed_norms": 30,
    "small_embeddings": 30,
}
STORED = load("incidents")["cases"]


def incident(name):
    script = import_module(f"examples.incidents.{name}")
    if name not in SMALLER:
        return script.INCIDENT
    return replace(script.INCIDENT, build=partial(script.build, SMALLER[name]))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", STEPS)
def test_the_cause_is_named_and_the_named_repair_helps(name):
    result = run_incident(incident(name), quick=True, steps=STEPS[name])
    assert is_improved(result)


@pytest.mark.slow
@pytest.mark.parametrize("name", [each for each in ORDER if each not in STEPS])
def test_the_cause_is_named(name):
    example = incident(name)
    assert find_finding(leadline.check(example.build()), example.cause).message


@pytest.mark.slow
@pytest.mark.parametrize("name", [each for each in ORDER if each not in STEPS])
def test_the_named_repair_of_a_deep_stack_helps(name):
    assert is_improved(run_incident(incident(name), quick=True, steps=60))


@pytest.mark.slow
def test_twelve_layers_are_said_to_train_where_twenty_four_are_not():
    script = import_module("examples.incidents.twenty_four_layers")
    assert leadline.check(script.INCIDENT.relative()).verdict == "trains"
    assert leadline.check(script.INCIDENT.build()).verdict == "poor"


def test_every_incident_has_a_stored_run():
    assert set(STORED) == set(ORDER)


@pytest.mark.parametrize("name", STORED)
def test_in_the_stored_runs_the_repaired_model_ends_lower(name):
    case = STORED[name]
    assert case["after"] is not None
    assert case["before"] is None or case["after"] < case["before"]
    assert case["cause"] == import_module(f"examples.incidents.{name}").INCIDENT.cause


@pytest.mark.parametrize("name", ORDER)
def test_a_script_says_what_was_reported_and_how_to_run_it(name):
    text = import_module(f"examples.incidents.{name}").__doc__
    assert "**Reported.**" in text
    assert "**Here.**" in text
    assert f"python -m examples.incidents.{name}" in text


def test_a_repair_that_does_not_help_is_noticed():
    result = IncidentResult(
        finding="",
        severity="info",
        found=(),
        verdict_before="fails",
        verdict_after=None,
        repair=(),
        before=2.0,
        after=2.0,
        relative=None,
    )
    assert not is_improved(result)
    assert not is_improved(replace(result, after=math.nan))
    assert is_improved(replace(result, before=math.nan))


def test_a_cause_that_is_not_there_is_an_error():
    model = torch.nn.Linear(4, 2)
    report = leadline.check(
        model, torch.randn(8, 4), torch.randint(2, (8,)), torch.nn.functional.cross_entropy
    )
    with pytest.raises(LookupError, match="no R402"):
        find_finding(report, "R402")


def test_the_gallery_has_a_section_for_every_incident_that_was_run():
    text = incidents.FOLDER.page.read_text()
    assert all(f"\n## {incidents.title(name)}\n" in text for name in STORED)
