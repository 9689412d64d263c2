"""The sentence behind the verdict says what decided it, and what was told not to."""

from __future__ import annotations

from msgspec.structs import replace

from leadline.records import Finding
from leadline.records.report import Report
from leadline.report.pages.report import reproducing_code
from leadline.report.verdict import headline, missing_evidence
from tests.support import reports as samples


def ignoring(*found: Finding) -> Report:
    return replace(samples.report(samples.profile([1.0], [1.0])), ignored=found)


def test_the_headline_says_how_many_findings_were_ignored():
    report = ignoring(samples.finding(code="F101"), samples.finding(code="B201"))
    assert headline(report).endswith("(2 findings ignored: F101, B201)")


def test_an_ignored_note_is_not_worth_a_word_in_the_headline():
    report = ignoring(samples.finding(severity="info"))
    assert "ignored" not in headline(report)


def test_a_prediction_that_does_not_reach_all_blocks_says_how_far_it_got():
    known = {"forward_ms_predicted": 1.0, "backward_ms_predicted": 1.0}
    blocks = (samples.block("a", None, None, **known), samples.block("b", None, None))
    predicted = samples.report(replace(samples.profile([], []), blocks=blocks))
    assert "only 1 of 2 blocks" in missing_evidence(predicted)
    assert "leadline.predict(build)" in reproducing_code(predicted)
