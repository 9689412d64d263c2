"""Reports quote the measured confidence, and the script that writes it refuses a source it does not understand."""

from __future__ import annotations

import pytest

from benchmarks.confidence import (
    DECIDED_VERDICTS,
    NAME,
    SOURCE,
    by_half,
    shares,
    stored_rows,
    write_confidence,
)
from benchmarks.result_files import load
from leadline.checks._diagnosis import CONFIDENCE


def test_reports_quote_the_confidence_measured_on_families_that_were_held_out():
    measured = load(NAME)["cases"]["held out"]
    assert {verdict: round(measured[verdict]["confidence"], 2) for verdict in DECIDED_VERDICTS} == CONFIDENCE


def test_the_stored_shares_follow_from_the_answers_of_the_atlas():
    assert load(NAME)["cases"] == by_half(stored_rows())


def test_few_cases_never_give_certainty():
    found = shares([("trains", True)] * 8)
    assert found["trains"]["confidence"] == 0.9
    assert found["fails"] == {"cases": 0.0, "right": 0.0, "confidence": 0.5}


def test_a_failing_verdict_is_right_when_the_network_did_not_learn():
    found = shares([("fails", False), ("fails", False), ("poor", True), ("trains", False)])
    assert [found[verdict]["right"] for verdict in DECIDED_VERDICTS] == [0, 0, 2]


def test_the_measured_numbers_are_written_into_the_source_of_the_checks():
    source = write_confidence(SOURCE.read_text(), shares([("trains", True)] * 8))
    assert '"trains": 0.90' in source
    assert '"fails": 0.50' in source
    with pytest.raises(ValueError, match="trains"):
        write_confidence("CONFIDENCE = {}", shares([]))
