"""The time machine: what counts as a known bug, what counts as named, and the folders of a wheel."""

import ast
import re

import pytest
import torch

from benchmarks.result_files import load
from benchmarks.time_machine import geometric, history, sweep
from benchmarks.time_machine.judgments import JUDGMENTS
from benchmarks.time_machine.known import BUGS, KNOWN
from benchmarks.time_machine.page import alarms, says
from benchmarks.time_machine.unreported import UNREPORTED
from benchmarks.time_machine.wheels import coupled_requirements
from leadline.checks import model_checks


def test_at_least_twenty_bugs_are_known_and_no_two_have_one_key():
    assert len(KNOWN) == len(BUGS) >= 20


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.key)
def test_a_known_bug_has_a_public_report_with_a_date_and_two_releases(bug):
    assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", bug.report)
    assert re.fullmatch(r"20\d\d-[01]\d-[0-3]\d", bug.date)
    assert bug.sick != bug.fixed
    assert {*bug.expected} <= {check.name for check in model_checks()} | {"refused"}


def answer(*findings):
    found = [{"name": name, "severity": severity, "text": ""} for name, severity in findings]
    return {"status": "checked", "findings": found}


def bug_that_expects(name):
    return next(bug for bug in BUGS if name in bug.expected)


def test_a_bug_is_named_only_by_an_expected_finding_at_warning_or_above():
    leak = bug_that_expects("visible-answer")
    assert says(answer(("visible-answer", "error")), leak) == "named"
    assert says(answer(("visible-answer", "info")), leak) == "note"
    assert says(answer(("shifted-targets", "error")), leak) == "missed"
    assert says({"status": "crashed", "reason": ""}, leak) == ""


def test_a_refusal_names_only_bugs_that_leave_nothing_to_train():
    refusal = {"status": "refused", "reason": ""}
    assert says(refusal, bug_that_expects("refused")) == "named"
    assert says(refusal, bug_that_expects("visible-answer")) == "missed"


def test_only_findings_about_the_question_or_memory_break_the_silence():
    assert alarms(answer(("gradient-decay", "error"), ("idle-input", "info"))) == []
    assert alarms(answer(("mixed-samples", "warning"))) == ["mixed-samples"]


def test_the_requirements_of_all_wheels_in_a_folder_hold_together(tmp_path):
    for name, asked in {"a": "huggingface-hub<1.0", "b": "huggingface_hub>=0.17"}.items():
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        extra = 'Requires-Dist: tokenizers==1.0; extra == "dev"'
        (folder / "METADATA").write_text(
            f"Name: {name}\nRequires-Dist: {asked}\nRequires-Dist: torch\n{extra}\n"
        )
    (requirement,) = coupled_requirements(tmp_path)
    assert requirement.startswith("huggingface-hub")
    assert {"<1.0", ">=0.17"} == {*requirement.removeprefix("huggingface-hub").split(",")}


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_the_stand_in_for_scatter_reduces_rows_by_their_index(reduce):
    rows, index = torch.tensor([[1.0, 2.0], [3.0, 5.0], [4.0, -1.0]]), torch.tensor([2, 0, 2])
    both = {"sum": [5.0, 1.0], "mean": [2.5, 0.5], "max": [4.0, 2.0]}[reduce]
    assert geometric.scatter(rows, index, 0, dim_size=3, reduce=reduce).tolist() == [
        [3.0, 5.0],
        [0.0, 0.0],
        both,
    ]


@pytest.mark.parametrize("each", UNREPORTED, ids=lambda each: each.name)
def test_an_unreported_finding_is_shown_in_ten_lines_without_leadline(each):
    lines = [
        line for line in each.test.splitlines() if line.strip() and not line.startswith(("import", "from"))
    ]
    ast.parse(each.test)
    assert len(lines) <= 10
    assert "leadline" not in each.test


RELEASES = [f"1.{minor}" for minor in range(30)]


@pytest.mark.parametrize(("first", "last"), [(0, 4), (3, 3), (7, 20), (11, 28)])
def test_bisecting_finds_the_first_and_the_last_release_with_a_bug(first, last):
    sick, fixed = RELEASES[(first + last) // 2], RELEASES[29]
    has_bug: dict[str, bool] = {}
    while (known := history.bounds(RELEASES, sick, fixed, has_bug)).open_places:
        place = history.next_place(known, [])
        assert RELEASES[place] not in has_bug
        has_bug[RELEASES[place]] = first <= place <= last
    found = history.bounds(RELEASES, sick, fixed, has_bug)
    assert (found.first, found.last) == (first, last)
    assert (found.before, found.after) == (first - 1, last + 1)
    assert len(has_bug) <= 10


def test_a_release_matters_only_between_the_known_ends():
    known = history.bounds(RELEASES, "1.10", "1.20", {"1.2": False, "1.8": True, "1.15": False})
    open_places = [place for place in range(30) if known.is_open(place)]
    assert open_places == [3, 4, 5, 6, 7, 11, 12, 13, 14]


def test_a_release_that_a_report_names_is_asked_first_and_then_the_one_before_it():
    known = history.bounds(RELEASES, "1.20", "1.29", {})
    assert history.next_place(known, [17]) == 17
    known = history.bounds(RELEASES, "1.20", "1.29", {"1.17": True})
    assert history.next_place(known, [17]) == 16
    known = history.bounds(RELEASES, "1.20", "1.29", {"1.16": False, "1.17": True})
    assert 20 < history.next_place(known, [17]) < 29


def test_a_sweep_covers_every_sick_release_of_transformers():
    swept = {release.version for release in sweep.releases() if release.package == "transformers"}
    assert swept == {bug.sick for bug in BUGS if bug.package == "transformers"}


def test_every_judged_finding_was_found_and_every_found_one_is_judged():
    cases = load(sweep.RESULTS)["cases"]
    found = {
        (name, finding)
        for answers in cases.values()
        for name, answer in answers.items()
        for finding in alarms(answer)
    }
    assert found == {*JUDGMENTS}


def test_an_old_wheel_brings_what_it_needs_and_does_not_ask_for(tmp_path):
    folder = tmp_path / "diffusers-0.21.4.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: diffusers\nRequires-Dist: huggingface-hub>=0.13.2\n")
    (requirement,) = coupled_requirements(tmp_path, ["huggingface-hub<0.26"])
    assert {">=0.13.2", "<0.26"} == {*requirement.removeprefix("huggingface-hub").split(",")}
