"""The planted bugs are what the page says, and are judged as it says."""

from __future__ import annotations

import pytest
import torch

from benchmarks.wiring import problems  # noqa: F401  (registers the programs)
from benchmarks.wiring.problem import PROBLEMS, bug
from benchmarks.wiring.scores import Row, score
from leadline.checks import model_checks
from leadline.tracer.inputs import call_model, find_loss


def row(*findings: tuple[str, str, str], note: bool = False) -> Row:
    keys = ("name", "severity", "text")
    said = [dict(zip(keys, each, strict=True)) for each in findings]
    answer = {"verdict": "poor", "findings": said}
    planted = bug("mask forgotten", "visible-answer", "attn", note=note)
    problem = PROBLEMS["nanogpt"]
    return Row(problem=problem, bug=planted, answer={**answer, "baseline": answer})


def test_there_are_enough_bugs_and_kinds_of_networks():
    assert sum(len(each.bugs) for each in PROBLEMS.values()) >= 120
    assert len({each.network for each in PROBLEMS.values()}) >= 12


def test_both_halves_have_at_least_a_third_of_their_bugs():
    halves = ("calibration", "held out")
    bugs = [each.part for each in PROBLEMS.values() for _ in each.bugs if each.part in halves]
    assert min(bugs.count(half) for half in halves) >= len(bugs) / 3


def test_every_expected_finding_exists():
    names = {each.name for each in model_checks()}
    missing = [
        (problem.name, each.name)
        for problem in PROBLEMS.values()
        for each in problem.bugs
        if not names & {*each.expected}
    ]
    assert missing == []


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_healthy_twin_has_a_finite_loss_with_a_gradient(name):
    case = PROBLEMS[name].case()
    loss = find_loss(call_model(case.model, case.inputs), case.loss, case.targets)
    assert bool(torch.isfinite(loss))
    assert loss.requires_grad


def test_the_same_program_is_built_each_time():
    first, second = (PROBLEMS["nanogpt"].case() for _ in range(2))
    pairs = zip(first.model.parameters(), second.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_finding_without_the_place_names_the_bug_and_does_not_locate_it():
    found = row(("visible-answer", "error", "the model: changing idx"))
    assert (found.is_named, found.is_located) == (True, False)
    assert row(("visible-answer", "error", "h.0.attn: changing idx")).is_located


def test_a_note_is_enough_only_where_the_bug_may_be_meant():
    said = ("visible-answer", "info", "h.0.attn")
    assert not row(said).is_named
    assert row(said, note=True).is_named


def test_another_finding_does_not_count():
    assert score([row(("mixed-samples", "error", "h.0.attn"))]).named == 0
