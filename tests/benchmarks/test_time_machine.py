"""The time machine: what counts as a known bug, what counts as named, and the folders of a wheel."""

import ast
import re

import pytest
import torch

from benchmarks.time_machine import geometric
from benchmarks.time_machine.known import BUGS, KNOWN, TYPES
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


def test_the_types_that_are_swept_belong_to_a_package_with_a_known_bug():
    assert {*TYPES} <= {bug.package for bug in BUGS}
