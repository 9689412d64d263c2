"""Laws that every rule keeps, asked of all of them: a new rule is covered without a new test."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest

from leadline.checks import model_checks
from leadline.checks._check import Check, Symptom, check
from leadline.checks._diagnosis import collect_findings
from leadline.checks._examples import geometric, profile_of
from leadline.records import Profile

RULES = model_checks()
HEADINGS = ["What it measures", "Why it hurts", "When it is wrong", "References"]
FAMILIES = {"F": "1", "B": "2", "I": "3", "R": "4", "U": "5", "W": "6", "N": "7", "T": "8"}


def violations(each: Check) -> list[str]:
    """Which promises a rule breaks."""
    found = []
    if not re.fullmatch(r"[FBIRUWNT]\d{3}", each.code) or FAMILIES[each.code[0]] != each.code[1]:
        found.append("code")
    if not re.fullmatch(r"[a-z]+(-[a-z]+)*", each.name):
        found.append("name")
    if re.findall(r"^## (.+)$", each.doc, flags=re.MULTILINE) != HEADINGS:
        found.append("headings")
    if not each.summary.endswith(".") or len(each.summary) > 90:
        found.append("summary")
    if not list(each(each.sick)):
        found.append("sick example is not found")
    if list(each(each.healthy)):
        found.append("healthy example is found")
    return found


@pytest.mark.parametrize("each", RULES, ids=lambda each: each.name)
def test_a_rule_keeps_the_promises_of_all_rules(each: Check):
    assert violations(each) == []


def test_a_rule_that_breaks_every_promise_is_caught():
    @check(code="X9", name="Bad Name", since="0.1", sick=geometric(blocks=4), healthy=geometric(blocks=4))
    def bad(profile: Profile):
        """no heading"""
        return []

    broken = {"code", "name", "headings", "summary", "sick example is not found"}
    assert broken <= set(violations(bad))


@pytest.mark.parametrize("each", RULES, ids=lambda each: each.name)
def test_findings_say_where_and_carry_finite_evidence(each: Check):
    for finding in each(each.sick):
        assert (finding.code, finding.name) == (each.code, each.name)
        assert finding.where
        assert len(finding.message) > 20
        assert finding.evidence
        assert all(math.isfinite(number) for number in finding.evidence.values())


@pytest.mark.parametrize("each", RULES, ids=lambda each: each.name)
def test_a_rule_reads_a_profile_that_has_nothing_measured(each: Check):
    empty = profile_of([None] * 6, [None] * 6)
    assert list(each(empty)) == []


def test_findings_are_ordered_by_severity_and_non_finite_numbers_come_first():
    @check(code="F199", name="mild", since="0.1", sick=geometric(blocks=4), healthy=geometric(blocks=4))
    def mild(profile: Profile):
        yield Symptom(severity="info", where="here", message="only said", evidence={})

    sick = next(each for each in RULES if each.code == "N701").sick
    growth = next(each for each in RULES if each.code == "F101")
    mixed = dataclasses.replace(growth, look=lambda profile: growth.look(growth.sick))
    found = collect_findings((mild, mixed, *(each for each in RULES if each.code == "N701")), sick)
    assert [finding.code for finding in found] == ["N701", "F101", "F199"]
