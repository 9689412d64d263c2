"""The comparison before and after a refactor sees numbers, names and structure, and ignores wording."""

import json
import math

import pytest

from benchmarks.unchanged import Difference, compared, differences, line_of, main, normalized, write

REPORT = {
    "verdict": "fails",
    "reason": "the gradient vanishes over 30 layers",
    "findings": [{"code": "B201", "where": "0 … 58", "layers": [0, 29], "evidence": {"factor": 1e-12}}],
    "confidence": None,
    "training": True,
    "seconds": 1.5,
    "file": "src/net.py",
}


def changes(old, new):
    return list(differences(normalized(old), normalized(new)))


def test_equal_results_have_no_difference():
    assert changes(REPORT, json.loads(json.dumps(REPORT))) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [(1.0, 1.0 + 1e-6), (3, 4), (3, 3.5), (True, 1), (None, 0.0), ("NaN", 1.0), ("B201", "B202")],
)
def test_a_changed_value_is_a_difference(old, new):
    assert changes({"a": [old]}, {"a": [new]}) == [Difference("changed", "a[0]", old, new)]


def test_floats_may_differ_by_their_last_digits_and_whole_numbers_may_not():
    assert changes({"a": 1.0}, {"a": 1.0 + 1e-12}) == []
    assert changes({"a": 10**15}, {"a": 10**15 + 1})


def test_a_removed_key_and_a_shorter_list_are_differences():
    assert changes({"a": 1, "b": 2}, {"a": 1}) == [Difference("removed", "b", 2)]
    assert changes({"a": [1, 2]}, {"a": [1]}) == [Difference("changed", "a.length", 2, 1)]


def test_wording_places_and_times_are_ignored():
    other = {"reason": "gradients vanish", "seconds": 9.0, "file": "src/moved/net.py"}
    assert changes(REPORT, REPORT | other) == []
    assert changes({"rows": ["two words"]}, {"rows": ["other words here"]}) == []


def test_a_missing_text_is_a_difference():
    assert changes(REPORT, REPORT | {"reason": ""}) == [Difference("changed", "reason", "<text>", "")]


def test_layers_in_a_sentence_about_location_are_compared():
    assert normalized({"where": "0.bias, 1.bias and 3 more"}) == {"where": "<text> 0.bias 1.bias 3"}
    assert changes({"where": "the data"}, {"where": "all data"}) == []


def test_names_and_ranges_of_layers_are_compared():
    finding = {**REPORT["findings"][0], "where": "0 … 56"}
    found = changes(REPORT, REPORT | {"findings": [finding]})
    assert [each.path for each in found] == ["findings[0].where"]


def test_numbers_that_json_cannot_write_keep_their_names():
    assert normalized([math.nan, math.inf, -math.inf]) == ["NaN", "Infinity", "-Infinity"]


def test_an_added_key_is_reported_separately():
    assert changes({"a": 1}, {"a": 1, "b": 2}) == [Difference("added", "b", new=2)]


def test_a_missing_case_is_a_difference():
    found = dict(compared({"g": {"one": 1, "two": 2}}, {"g": {"one": 1, "three": 3}}))
    assert {name: each.kind for name, each in found.items()} == {"g/two": "removed", "g/three": "added"}


def test_a_difference_is_one_line():
    assert line_of("g/case", Difference("changed", "a.b", 1, 2)) == "g/case: a.b: 1 -> 2"
    assert line_of("g/case", Difference("removed", "a.b", 1)) == "g/case: a.b: 1 -> (removed)"
    assert line_of("g/case", Difference("added", "a.b", new=2)) == "added g/case: a.b: 2"


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_the_exit_code_reports_changes_and_additions_only_in_strict_mode(tmp_path, capsys, ending):
    old, new = tmp_path / f"old{ending}", tmp_path / f"new{ending}"
    write(old, {"g": {"case": {"a": 1}}, "h": {"case": {"a": 1}}})
    write(new, {"g": {"case": {"a": 1, "b": 2}}, "h": {"case": {"a": 2}}})
    assert main(["diff", str(old), str(old)]) == 0
    assert main(["diff", str(old), str(new), "--only", "g"]) == 0
    assert main(["diff", str(old), str(new), "--only", "g", "--strict"]) == 1
    assert main(["diff", str(old), str(new)]) == 1
    assert "h/case: a: 1 -> 2\n" in capsys.readouterr().out
