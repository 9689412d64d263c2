"""The page of a repair: verdicts, what was tried, both trainings; harmless names; Markdown."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from leadline.cli.fix import exit_code
from leadline.errors import SchemaError
from leadline.records import Trial
from leadline.records.repair import RepairReport
from leadline.report.charts.sparkline import loss_curve
from leadline.report.formats import REPAIR_FORMATS
from leadline.report.look import Look
from leadline.report.snippet import put_together
from tests.support import reports as samples
from tests.support.repairs import outcome, repair

GOLDEN = Path(__file__).parents[1] / "golden"


def render(record: RepairReport, look: Look) -> str:
    return REPAIR_FORMATS["text"](record, look)


def to_markdown(record: RepairReport) -> str:
    return REPAIR_FORMATS["md"](record, Look())


@pytest.mark.parametrize(
    ("name", "made"),
    [("repair.txt", lambda: render(repair(), Look())), ("repair.md", lambda: to_markdown(repair()))],
)
def test_the_page_is_as_it_was(name, made):
    assert made() == (GOLDEN / name).read_text()


def test_a_repair_survives_json_and_says_what_it_is():
    record = repair(trial=Trial(untreated=(2.0, math.inf), treated=(1.0,)))
    assert RepairReport.from_json(record.to_json()) == record
    assert (record.verdict_before, record.verdict_after, record.ok) == ("fails", "trains", True)
    assert "fails before, trains after" in repr(record)
    with pytest.raises(SchemaError, match=r"leadline\.repair/1"):
        RepairReport.from_json("{}")


@pytest.mark.parametrize(
    ("changes", "head"),
    [
        ({}, "REPAIRED: DOES NOT TRAIN → TRAINS, loss 2.00 → 0.500 after 4 steps"),
        ({"after": samples.sick()}, "PARTLY REPAIRED: DOES NOT TRAIN → "),
        ({"after": None}, "NOT REPAIRED: "),
        (
            {
                "after": None,
                "sought": False,
                "before": samples.report(samples.profile([1.0] * 4, [1.0] * 4), verdict="trains"),
            },
            "NOTHING TO FIX: ",
        ),
        (
            {
                "after": None,
                "sought": True,
                "before": samples.report(samples.profile([1.0] * 4, [1.0] * 4), verdict="trains"),
            },
            "NOT REPAIRED: the check finds nothing, yet the model did not learn: 4 steps took",
        ),
        (
            {
                "after": None,
                "sought": False,
                "learns": False,
                "before": samples.report(samples.profile([1.0] * 4, [1.0] * 4), verdict="trains"),
            },
            "UNDECIDED: ",
        ),
    ],
)
def test_the_first_line_says_how_it_ended(changes, head):
    assert render(repair(**changes), Look(detail="verdict")).startswith(head)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"after": samples.sick()}, 1),
        ({"after": None}, 1),
        ({"after": None, "before": samples.healthy()}, 1),
        ({"after": None, "before": samples.healthy(), "sought": False}, 0),
        ({"after": None, "before": samples.healthy(), "sought": False, "learns": False}, 3),
    ],
)
def test_the_exit_code_is_0_only_if_the_model_trains_after_the_search_or_needed_none(changes, code):
    record = repair(**changes)
    assert exit_code(record) == code
    assert record.ok == (code == 0)


@pytest.mark.parametrize("detail", ["verdict", "page", "everything"])
@pytest.mark.parametrize("width", [50, 80, 120])
def test_no_line_is_wider_than_the_page(detail, width):
    many = repair(
        outcomes=tuple(
            outcome(fix=f"fix-{i}", title="word " * 60, why="word " * 90, kept=False) for i in range(9)
        ),
        code="",
    )
    assert max(map(len, render(many, Look(width=width, detail=detail)).splitlines())) <= width


def test_names_of_the_user_cannot_move_the_cursor_or_become_markdown():
    nasty = "evil\x1b[2Jname|<script>```"
    found = repair(outcomes=(outcome(title=nasty, why=nasty),), notes=(nasty,), code=nasty)
    assert "\x1b" not in render(found, Look())
    outside, fenced, behind = to_markdown(found).split("````")
    assert "<script>" in fenced
    assert "<script>" not in outside + behind


def test_a_curve_fills_its_width_and_marks_where_training_broke():
    assert loss_curve((2.0, 1.0, 0.0), (), 3) == "█▅▁"
    assert loss_curve((2.0, math.nan), (2.0, 1.0, 0.0, 0.0), 4) == "█!  "
    assert loss_curve((9.0,) * 8, (2.0, 0.0), 4) == "████"
    assert loss_curve((1.0, math.inf), (), 2)[1] == "∞"


def test_snippets_are_put_together_with_each_import_once_and_first():
    assert (
        put_together(["import a\nx = 1", "", "import a\nimport b\ny = 2"])
        == "import a\nimport b\nx = 1\ny = 2"
    )


def test_a_repair_without_a_trial_has_no_table_of_losses():
    assert "loss over" in to_markdown(repair())
    assert "loss over" not in to_markdown(repair(trial=None))


def test_the_terminal_shows_what_only_the_author_can_do():
    title = "train.py:12: Give the attention a causal mask"
    advice = outcome(fix="rewire", reach="advice", state="not run", title=title, why="advice", kept=False)
    other = outcome(fix="keel", state="not run", why="too long", kept=False)
    page = render(repair(outcomes=(advice, other)), Look())
    assert re.search(r"to do +train\.py:12: Give the attention a causal mask", page)
    assert re.search(r"not run +keel: too long", page)
