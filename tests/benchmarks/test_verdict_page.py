"""The verdict page says what the stored labels and verdicts say."""

import json
import math
from dataclasses import replace

import pytest

import leadline
from benchmarks.result_files import fill
from benchmarks.verdicts.cases import LabeledProblem, StoredVerdict, label_to_json
from benchmarks.verdicts.evaluation import PAGE, leadline_verdict, stored
from benchmarks.verdicts.page import TABLES, held_out, misses
from benchmarks.verdicts.problem import Problem, from_dict
from benchmarks.verdicts.score import figures, score, settle

SMALL = Problem(
    family="mlp", cause="none", data="blobs", depth=2, width=16, init="critical", rate=0.01, batch=32
)


def test_rates_follow_from_the_confusion_table():
    pairs = [(True, "stuck")] * 3 + [(False, "diverged")] + [(True, "reached")] * 2 + [(False, "reached")] * 6
    found = score(pairs)
    assert (found.caught, found.missed, found.false_alarms, found.passed) == (3, 1, 2, 6)
    assert found.recall == 0.75
    assert found.precision == 0.6
    assert found.false_alarm_rate == 0.25
    assert found.balanced_accuracy == 0.75
    assert "| x | 75.0 % | 75.0 % | 60.0 % | 25.0 % | 3 | 1 | 2 | 6 |" in figures({"x": found})


def test_a_share_without_cases_is_nan():
    assert math.isnan(score([(False, "reached")]).precision)


def labeled(problem, label, progress=0.0):
    return LabeledProblem(
        problem=problem,
        label=label,
        progress=progress,
        final_progress=progress,
        first_loss=1.0,
        last_loss=1.0,
        steps=150,
        seconds=1.0,
    )


def test_a_borderline_case_is_labeled_by_the_target_without_margin():
    assert settle(labeled(SMALL, "borderline", 0.55), 0.5) == "reached"
    assert settle(labeled(SMALL, "borderline", 0.2), 0.5) == "stuck"
    assert settle(labeled(SMALL, "diverged", None), 0.5) == "diverged"


def test_a_label_survives_json():
    case = labeled(SMALL, "stuck", None)
    told = json.loads(json.dumps(label_to_json(case)))
    assert LabeledProblem(**told | {"problem": from_dict(told["problem"])}) == case


def test_a_wrong_verdict_is_listed_and_a_right_one_is_not():
    cases = {"a": "stuck", "b": "reached", "c": "borderline", "d": "stuck", "e": "diverged"}
    said = {"a": "trains", "b": "poor", "c": "fails", "d": "fails", "e": "undecided"}
    found = misses(
        {key: labeled(SMALL, label) for key, label in cases.items()},
        {key: StoredVerdict(verdict=verdict, codes=()) for key, verdict in said.items()},
    )
    assert found == [("missed", "a"), ("false alarm", "b"), ("missed", "e")]


def test_leadline_gives_a_verdict_on_a_problem():
    assert leadline_verdict(SMALL).verdict in ("trains", "poor", "fails", "undecided")


def test_a_crash_is_a_verdict_but_not_an_alarm(monkeypatch):
    monkeypatch.setattr(leadline, "check", lambda *arguments: 1 / 0)
    assert leadline_verdict(SMALL) == StoredVerdict(verdict="crash", codes=("ZeroDivisionError",))
    assert not leadline_verdict(SMALL).alarm


def test_only_the_held_out_half_is_published():
    problems = [replace(SMALL, seed=i) for i in range(20)]
    cases = {p.key: labeled(p, "reached") for p in problems}
    assert set(held_out(cases)) == {p.key for p in problems if p.half == "held-out"}


@pytest.mark.parametrize("mark", TABLES)
def test_a_table_of_the_page_is_what_the_stored_results_render_to(mark):
    text = PAGE.read_text()
    assert fill(text, mark, TABLES[mark](*stored())) == text
