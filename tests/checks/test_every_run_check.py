"""Laws that every run check keeps: a new check is covered without a new test."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from leadline.checks import model_checks, run_checks
from leadline.checks._check import Check, Symptom, check
from leadline.checks._examples import constant, scalar_history
from leadline.checks._history import History
from leadline.records.run import Sample

RUN_CHECKS = run_checks()
HEADINGS = ["What it measures", "Why it hurts", "When it is wrong", "References"]
UNITS = {"loss", "grad_norm", "update_norm", "weight_norm"}  # what has the unit of the loss or of a weight
each_run_check = pytest.mark.parametrize("each", RUN_CHECKS, ids=lambda each: each.name)


def violations(each: Check) -> list[str]:
    """Which promises a run check breaks."""
    found = []
    if not re.fullmatch(r"T8\d\d", each.code):
        found.append("code")
    if not re.fullmatch(r"[a-z]+(-[a-z]+)*", each.name):
        found.append("name")
    if re.findall(r"^## (.+)$", each.doc, flags=re.MULTILINE) != HEADINGS:
        found.append("headings")
    if not each.summary.endswith(".") or len(each.summary) > 100:
        found.append("summary")
    if not list(each(each.sick)):
        found.append("sick example is not found")
    if list(each(each.healthy)):
        found.append("healthy example is found")
    if not any(each.sick.has(name) for name in each.needs):
        found.append("sick example lacks what it needs")
    if each.look.__name__ != each.name.replace("-", "_"):
        found.append("function is not called as the check")
    return found


def wording_violations(symptom: Symptom) -> list[str]:
    """Which promises about its text a symptom breaks: what was measured, and what to do."""
    found = []
    if not re.search(r"\d", symptom.message):
        found.append("message has no number")
    if symptom.message.endswith(".") or symptom.message[:1].isupper():
        found.append("message is not a clause")
    if re.search(r"[\d%] a (step|block|layer)\b", symptom.message):
        found.append("message says 'a step' for 'per step'")
    if not re.fullmatch(r"[A-Z][^\n]*[^.]\.", symptom.action) or re.search(r"\. [A-Z]", symptom.action):
        found.append("action is not one sentence")
    return found


@each_run_check
def test_a_run_check_keeps_the_promises_of_all_run_checks(each: Check):
    assert violations(each) == []


def test_a_run_check_that_breaks_every_promise_is_caught():
    quiet = scalar_history(4, loss=constant(1.0))

    @check(code="X9", name="Bad Name", since="0.1", needs=("nothing",), sick=quiet, healthy=quiet)
    def bad(history: History):
        """no heading"""
        return []

    broken = {
        "function is not called as the check",
        "code",
        "name",
        "headings",
        "summary",
        "sick example is not found",
        "sick example lacks what it needs",
    }
    assert set(violations(bad)) == broken


def test_no_run_check_has_the_code_or_name_of_a_model_check():
    taken = {key for each in model_checks() for key in (each.code, each.name)}
    assert not taken & {key for each in RUN_CHECKS for key in (each.code, each.name)}


def test_what_a_run_check_explains_exists():
    codes = {each.code for each in RUN_CHECKS}
    assert all(set(each.explains) <= codes - {each.code} for each in RUN_CHECKS)


@each_run_check
def test_alerts_say_where_since_when_and_carry_finite_evidence(each: Check):
    for alert in each(each.sick):
        assert (alert.code, alert.name, alert.state) == (each.code, each.name, "raised")
        assert alert.where
        assert len(alert.message) > 20
        assert alert.since <= alert.step == each.sick.step
        assert alert.evidence
        assert all(map(math.isfinite, alert.evidence.values()))
        assert alert.trend is None or math.isfinite(alert.trend)
        assert alert.layers is None or alert.layers[0] <= alert.layers[1]


@each_run_check
def test_symptoms_say_what_was_measured_and_what_to_do(each: Check):
    for symptom in each.look(each.sick):
        assert wording_violations(symptom) == []


@pytest.mark.parametrize("seed", range(20))
@each_run_check
def test_symptoms_of_odd_histories_say_what_to_do_too(each: Check, seed: int):
    """Other branches of a check have messages of their own."""
    draw = random.Random(seed)
    odd = [math.nan, 0.0, -1.0, -3.0, 1.0, 1e3]

    def spoil(_: str, number: float) -> float:
        return draw.choice(odd) if draw.random() < 0.02 else number

    for history in (each.sick, each.healthy):
        for symptom in each.look(rewritten(history, spoil)):
            assert wording_violations(symptom) == []


def test_a_symptom_with_bad_wording_is_caught():
    bad = Symptom(
        severity="info", where="here", message="It grows 3% a step.", action="lower it", evidence={}
    )
    assert wording_violations(replace(bad, message="it grows"))[0] == "message has no number"
    assert wording_violations(bad) == [
        "message is not a clause",
        "message says 'a step' for 'per step'",
        "action is not one sentence",
    ]


@each_run_check
def test_a_run_check_reads_a_history_that_has_nothing_in_it(each: Check):
    assert list(each(History())) == []
    assert list(each(scalar_history(700, unheard_of=constant(1.0)))) == []


@each_run_check
def test_a_run_check_does_not_choke_on_non_finite_numbers(each: Check):
    """Any course of what it needs may hold NaN, infinity, zero or a negative number."""
    for value in (math.nan, math.inf, -math.inf, 0.0, -1.0):
        history = rewritten(each.sick, lambda _, number, value=value: value)
        assert all(alert.message for alert in each(history))


@each_run_check
@pytest.mark.parametrize("seed", range(6))
def test_a_run_check_survives_any_mixture_of_numbers(each: Check, seed: int):
    """An error in a check would end the watch, so it must answer whatever was recorded."""
    draw = random.Random(seed)
    odd = [math.nan, math.inf, -math.inf, 0.0, -1.0, -2.0, 1.0, 3e38, 1e-38]
    share = draw.choice([0.02, 0.3, 0.9])

    def spoil(_: str, number: float) -> float:
        return draw.choice(odd) if draw.random() < share else number

    for history in (each.sick, each.healthy):
        assert all(alert.message for alert in each(rewritten(history, spoil)))


@each_run_check
def test_looking_twice_sees_the_same(each: Check):
    assert list(each(each.sick)) == list(each(each.sick))


@each_run_check
@pytest.mark.parametrize("factor", [2.0**-20, 2.0**13])
def test_the_unit_of_the_loss_and_of_the_weights_does_not_matter(each: Check, factor: float):
    """Multiplying the loss by a constant multiplies loss and gradients; doubling all weights and steps is no news."""

    def scale(name: str, number: float) -> float:
        return number * factor if name in UNITS and number > 0 else number

    for history in (each.sick, each.healthy):
        before, after = list(each(history)), list(each(rewritten(history, scale)))
        assert [(a.severity, a.where, a.since, a.layers) for a in before] == [
            (a.severity, a.where, a.since, a.layers) for a in after
        ]


@each_run_check
def test_counting_steps_from_another_number_shifts_the_alert_and_nothing_else(each: Check):
    shifted = rewritten(each.sick, lambda _, number: number, shift=10_000)
    for before, after in zip(each(each.sick), each(shifted), strict=True):
        assert (after.since - before.since, after.step - before.step) == (10_000, 10_000)
        assert after.severity == before.severity
        assert after.where == before.where


def rewritten(history: History, change: Callable[[str, float], float], *, shift: int = 0) -> History:
    """The same course with every number changed; what the ring no longer holds is not in it."""
    fresh, samples = History(history.layout), {history.step: ({}, {})}
    for name in NUMBERS:
        found = history.scalars(name)
        for step, value in zip(found.steps, found.values, strict=True):
            samples.setdefault(step, ({}, {}))[0][name] = change(name, value)
    for name in VECTORS:
        for found in (history.spaced(name), history.recent(name)):
            for step, row in zip(found.steps, found.rows, strict=True):
                samples.setdefault(step, ({}, {}))[1][name] = [change(name, value) for value in row]
    for step, (numbers, vectors) in sorted(samples.items()):
        fresh.add(Sample(step=step + shift, scalars=numbers, vectors=vectors))
    return fresh


NUMBERS = (*sorted(UNITS), "lr", "grad_clip", "loss_scale", "non_finite")
VECTORS = (
    "grad_norm",
    "update_norm",
    "weight_norm",
    "dead",
    "branch_skip",
    "attention_logit",
    "attention_entropy",
)
