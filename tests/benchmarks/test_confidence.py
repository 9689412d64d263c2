"""The confidence that reports give is the one that was measured, and the script that measures it can be wrong."""

from __future__ import annotations

import pytest

from benchmarks.confidence import NAME, SAID, SOURCE, by_half, rewritten, shares
from benchmarks.store import load
from benchmarks.verdicts.cases import load_labels, load_verdicts
from leadline.checks._diagnosis import CONFIDENCE


def test_what_reports_say_is_what_was_measured_on_the_calibration_half():
    measured = load(NAME)["cases"]["calibration"]
    assert {verdict: round(measured[verdict]["confidence"], 2) for verdict in SAID} == CONFIDENCE


def test_the_stored_shares_are_those_of_the_published_verdicts():
    assert load(NAME)["cases"] == by_half(load_labels(), load_verdicts())


def test_few_cases_never_give_certainty():
    found = shares([("trains", True)] * 8)
    assert found["trains"]["confidence"] == 0.9
    assert found["fails"] == {"cases": 0.0, "right": 0.0, "confidence": 0.5}


def test_an_alarm_is_right_where_nothing_was_learned():
    found = shares([("fails", False), ("fails", False), ("poor", True), ("trains", False)])
    assert [found[verdict]["right"] for verdict in SAID] == [0, 0, 2]


def test_the_numbers_are_written_where_reports_read_them():
    made = rewritten(SOURCE.read_text(), shares([("trains", True)] * 8))
    assert '"trains": 0.90' in made
    assert '"fails": 0.50' in made
    with pytest.raises(ValueError, match="trains"):
        rewritten("CONFIDENCE = {}", shares([]))
