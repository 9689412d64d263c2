"""The sentence behind the verdict says what decided it, and what was told not to."""

from __future__ import annotations

from msgspec.structs import replace

from leadline.records import Finding
from leadline.records.report import Report
from leadline.report.verdict import headline
from tests.support import reports as samples


def ignoring(*found: Finding) -> Report:
    return replace(samples.report(samples.profile([1.0], [1.0])), ignored=found)


def test_the_headline_says_how_many_findings_were_ignored():
    report = ignoring(samples.finding(code="F101"), samples.finding(code="B201"))
    assert headline(report).endswith("(2 findings ignored: F101, B201)")


def test_an_ignored_note_is_not_worth_a_word_in_the_headline():
    report = ignoring(samples.finding(severity="info"))
    assert "ignored" not in headline(report)
