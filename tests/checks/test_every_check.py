"""Laws that all checks keep, of models and of runs: a new check is covered without a new test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leadline.checks import Check, Symptom, all_checks, check
from leadline.checks._examples import geometric
from leadline.records import Profile
from tests.support.check_laws import check_violations, wording_violations

each_check = pytest.mark.parametrize("each", all_checks(), ids=lambda each: each.name)


@each_check
def test_a_check_keeps_the_laws_of_all_checks(each: Check):
    assert check_violations(each) == []


@each_check
def test_a_check_says_what_was_measured_and_what_to_do(each: Check):
    for symptom in each.look(each.sick):
        assert wording_violations(symptom) == []


def test_a_check_that_breaks_every_law_is_caught():
    quiet = geometric(blocks=4)

    @check(code="X9", name="Bad Name", since="0.0.7", sick=quiet, healthy=quiet)
    def bad(profile: Profile):
        """no heading, and an optimiser"""
        return []

    assert check_violations(bad) == [
        "code",
        "name",
        "function is not named after the check",
        "file is not named after the check",
        "since is not a version",
        "headings",
        "summary",
        "page is not in American English",
        "sick example has no finding",
    ]


def test_a_symptom_with_bad_wording_is_caught():
    good = Symptom(
        severity="info",
        where="here",
        message="the loss grows by 3 % per step",
        action="Lower the learning rate to 0.1.",
        evidence={},
    )
    assert wording_violations(good) == []
    assert wording_violations(replace(good, message="the loss grows a lot")) == ["message has no number"]
    assert wording_violations(replace(good, message="It grows 3% a step.", action="lower it")) == [
        "message is not a clause",
        "message says 'a step' for 'per step'",
        "action is not one sentence",
        "action is not imperative",
    ]
    assert wording_violations(replace(good, message="too long: 3 steps, behind it")) == [
        "first clause is not a reason by itself",
        "text is not in American English",
    ]
    repeated = replace(good, action="The loss grows by 3 % per step.")
    assert wording_violations(repeated) == ["action is not imperative", "action repeats the message"]
