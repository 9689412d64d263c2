"""Baselines: known findings do not fail, new or worse ones do, and those that are gone are listed."""

import json

import pytest
from msgspec.structs import replace

from leadline.cli.baseline import (
    Baseline,
    mark_report,
    read_baseline,
    target_key,
    update_baseline,
    write_baseline_file,
)
from leadline.errors import InputError, SchemaError
from tests.support import reports as samples

TARGET = "package.nets:make"
RANGE = "layers.58 … layers.0"


def report(*findings, target=TARGET, ignored=()):
    made = samples.report(samples.profile([1.0], [1.0]), *findings)
    return replace(made, target=target, ignored=tuple(ignored))


def known(now, *before, tmp_path):
    """Which of the findings of `now` a baseline of `before` knows, and how many of its entries are stale."""
    baseline = update_baseline(Baseline(), [report(*before)], tmp_path)
    marked, stale = mark_report(now, baseline, tmp_path)
    return [finding.known for finding in marked.findings], len(stale)


@pytest.mark.parametrize(
    ("change", "is_known"),
    [
        ({}, True),
        ({"message": "other words", "evidence": {"gain_per_block": 0.2}}, True),
        ({"where": "layers.57 … layers.3"}, True),
        ({"severity": "info"}, True),
        ({"severity": "error"}, False),
        ({"where": "other.58 … other.0"}, False),
        ({"where": "layers.58"}, False),
        ({"code": "F101"}, False),
    ],
)
def test_a_finding_is_known_by_rule_and_place_unless_it_is_worse(tmp_path, change, is_known):
    before = samples.finding(where=RANGE, severity="warning")
    found, stale = known(report(replace(before, **change)), before, tmp_path=tmp_path)
    assert found == [is_known]
    assert stale == (0 if is_known or change == {"severity": "error"} else 1)


def test_an_entry_serves_one_finding(tmp_path):
    twin = samples.finding(where=RANGE)
    assert known(report(twin, twin), twin, tmp_path=tmp_path) == ([True, False], 0)
    assert known(report(twin), twin, twin, tmp_path=tmp_path) == ([True], 1)


def test_of_two_entries_the_exact_one_is_used_first(tmp_path):
    near, exact = samples.finding(where="layers.9 … layers.1", severity="error"), samples.finding(where=RANGE)
    baseline = update_baseline(Baseline(), [report(near, exact)], tmp_path)
    _, (stale,) = mark_report(report(exact), baseline, tmp_path)
    assert stale.where == near.where


def test_what_another_target_has_is_not_known_here(tmp_path):
    baseline = update_baseline(Baseline(), [report(samples.finding(), target="package.nets:other")], tmp_path)
    marked, stale = mark_report(report(samples.finding()), baseline, tmp_path)
    assert not marked.findings[0].known
    assert stale == ()  # the other target was not checked, so nothing is known of its entries


def test_an_entry_of_an_ignored_rule_is_not_stale(tmp_path):
    found = samples.finding()
    assert known(report(ignored=[found]), found, tmp_path=tmp_path) == ([], 0)


def test_a_baseline_does_not_change_the_verdict(tmp_path):
    before = report(samples.finding())
    marked, _ = mark_report(before, update_baseline(Baseline(), [before], tmp_path), tmp_path)
    assert marked.verdict == before.verdict == "fails"


def test_writing_again_keeps_other_targets_and_replaces_this_one(tmp_path):
    first = update_baseline(
        Baseline(), [report(samples.finding()), report(samples.finding(), target="b:c")], tmp_path
    )
    again = update_baseline(first, [report(samples.finding(code="F101"))], tmp_path)
    assert [(entry.target, entry.code) for entry in again.findings] == [("b:c", "B201"), (TARGET, "F101")]


def test_the_file_does_not_depend_on_the_order_and_is_read_back(tmp_path):
    path = tmp_path / "known.json"
    found = [samples.finding(where=name) for name in samples.HOSTILE_NAMES if name.isprintable()]
    baseline = update_baseline(Baseline(), [report(*found)], tmp_path)
    write_baseline_file(baseline, path)
    text = path.read_text()
    write_baseline_file(update_baseline(Baseline(), [report(*found[::-1])], tmp_path), path)
    assert path.read_text() == text
    assert read_baseline(path) == baseline
    assert "message" not in json.loads(text)["findings"][0]


@pytest.mark.parametrize("name", samples.HOSTILE_NAMES, ids=range(len(samples.HOSTILE_NAMES)))
def test_any_name_survives_the_file(tmp_path, name):
    baseline = update_baseline(Baseline(), [report(samples.finding(where=name))], tmp_path)
    write_baseline_file(baseline, tmp_path / "known.json")
    assert read_baseline(tmp_path / "known.json") == baseline


def test_a_target_in_a_file_is_named_from_where_the_baseline_lies(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "nets.py").write_text("")
    monkeypatch.chdir(tmp_path)
    from_root = target_key("models/nets.py:make", tmp_path)
    monkeypatch.chdir(tmp_path / "models")
    assert target_key("nets.py:make", tmp_path) == from_root == "models/nets.py:make"
    assert target_key("package.nets:make", tmp_path) == "package.nets:make"


def test_a_missing_baseline_is_an_error_with_the_command_that_writes_one(tmp_path):
    with pytest.raises(InputError, match="--write-baseline"):
        read_baseline(tmp_path / "known.json")


@pytest.mark.parametrize(
    "text", ["", "{}", '{"schema": "leadline.cli.baseline/9"}', '{"schema": "leadline.report/1"}']
)
def test_a_file_that_is_no_baseline_is_refused(tmp_path, text):
    (tmp_path / "known.json").write_text(text)
    with pytest.raises(SchemaError):
        read_baseline(tmp_path / "known.json")
