"""Laws that every model check keeps: a new check is covered without a new test."""

from __future__ import annotations

import dataclasses
import math

import pytest

from leadline.checks import Check, Symptom, check, model_checks
from leadline.checks._diagnosis import collect_findings
from leadline.checks._examples import geometric, profile_of
from leadline.records import Profile

MODEL_CHECKS = model_checks()
each_model_check = pytest.mark.parametrize("each", MODEL_CHECKS, ids=lambda each: each.name)


@each_model_check
def test_findings_say_where_and_carry_finite_evidence(each: Check):
    for finding in each(each.sick):
        assert (finding.code, finding.name) == (each.code, each.name)
        assert finding.where
        assert finding.evidence
        assert all(math.isfinite(number) for number in finding.evidence.values())


@each_model_check
def test_a_model_check_is_silent_on_a_profile_in_which_nothing_was_measured(each: Check):
    empty = profile_of([None] * 6, [None] * 6)
    assert list(each(empty)) == []


def test_findings_are_ordered_by_severity_and_non_finite_values_come_first():
    @check(code="F199", name="mild", since="0.1.0", sick=geometric(blocks=4), healthy=geometric(blocks=4))
    def mild(profile: Profile):
        yield Symptom(severity="info", where="here", message="a note", action="Ignore it.", evidence={})

    non_finite = next(each for each in MODEL_CHECKS if each.code == "N701")
    growth = next(each for each in MODEL_CHECKS if each.code == "F101")
    always_growth = dataclasses.replace(growth, look=lambda profile: growth.look(growth.sick))
    findings = collect_findings((mild, always_growth, non_finite), non_finite.sick)
    assert [finding.code for finding in findings] == ["N701", "F101", "F199"]
