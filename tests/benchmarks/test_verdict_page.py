"""The verdict page says what the stored labels and verdicts say."""

import math

import pytest

from benchmarks.store import fill
from benchmarks.verdicts.judge import PAGE, ask, misses, stored
from benchmarks.verdicts.page import TABLES, held_out
from benchmarks.verdicts.problem import Problem, to_dict
from benchmarks.verdicts.score import figures, score, settle

SMALL = Problem(
    family="mlp", cause="none", data="blobs", depth=2, width=16, init="critical", rate=0.01, batch=32
)


def test_the_figures_are_those_of_the_confusion_table():
    pairs = [(True, "stuck")] * 3 + [(False, "diverged")] + [(True, "reached")] * 2 + [(False, "reached")] * 6
    found = score(pairs)
    assert (found.caught, found.missed, found.false_alarms, found.passed) == (3, 1, 2, 6)
    assert found.recall == 0.75
    assert found.precision == 0.6
    assert found.false_alarm_rate == 0.25
    assert found.balanced_accuracy == 0.75
    assert "| x | 75.0 % | 75.0 % | 60.0 % | 25.0 % | 3 | 1 | 2 | 6 |" in figures({"x": found})


def test_a_share_of_nothing_is_not_a_number():
    assert math.isnan(score([(False, "reached")]).precision)


def test_a_borderline_case_counts_by_the_bare_target():
    assert settle({"label": "borderline", "progress": 0.55}, 0.5) == "reached"
    assert settle({"label": "borderline", "progress": 0.2}, 0.5) == "stuck"
    assert settle({"label": "diverged", "progress": None}, 0.5) == "diverged"


def test_a_wrong_verdict_is_listed_and_a_right_one_is_not():
    cases = {
        "a": {"label": "stuck"},
        "b": {"label": "reached"},
        "c": {"label": "borderline"},
        "d": {"label": "stuck"},
    }
    said = {
        "a": {"verdict": "trains"},
        "b": {"verdict": "poor"},
        "c": {"verdict": "fails"},
        "d": {"verdict": "fails"},
    }
    assert [(kind, key) for kind, key, _ in misses(cases, said)] == [("missed", "a"), ("false alarm", "b")]


def test_leadline_is_asked_about_the_model_as_it_will_be_trained():
    found = ask(SMALL)
    assert found["verdict"] in ("trains", "poor", "fails", "undecided")


def test_only_the_held_out_half_is_published():
    problems = [
        Problem(family="mlp", cause="none", data="blobs", depth=2, width=8, seed=i) for i in range(20)
    ]
    cases = {p.key: {"problem": to_dict(p), "label": "reached"} for p in problems}
    assert set(held_out(cases)) == {p.key for p in problems if p.half == "held-out"}


@pytest.mark.parametrize("mark", TABLES)
def test_a_table_of_the_page_is_what_the_stored_results_render_to(mark):
    text = PAGE.read_text()
    assert fill(text, mark, TABLES[mark](*stored())) == text
