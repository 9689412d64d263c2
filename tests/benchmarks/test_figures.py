"""The index of figures is built from stored results and skips missing ones."""

from benchmarks import figures
from benchmarks.result_files import load


def test_every_figure_has_an_answer_and_a_page():
    page = figures.page()
    assert page.startswith("# Figures")
    assert all(answer and where and script for _, answer, where, script in figures.figures())
    assert "atlas.md)" in page


def test_a_benchmark_without_results_is_left_out(monkeypatch):
    before = list(figures.figures())
    monkeypatch.setattr(figures, "load", lambda name: {"cases": {}, "runs": []})
    monkeypatch.setattr(
        figures, "MAKERS", (figures._repairs, figures._costs, figures._sizes, figures._stories)
    )
    assert list(figures.figures()) == []
    assert before


def test_the_table_of_monitors_has_gaps_where_one_was_not_run():
    cases = {
        "every step | a | net": {"ratio": {"median": 1.5}},
        "every step | b | other": {"ratio": {"median": 2.0}},
        "budget | a | net": {"ratio": 1.0},
    }
    assert figures.monitor_costs({"cases": cases}).splitlines()[2:] == ["| a | 1.50 |  |", "| b |  | 2.00 |"]


def test_a_repair_that_made_it_worse_is_not_counted_as_an_improvement():
    assert figures._improved({"before": None, "after": 2.0})
    assert not figures._improved({"before": 2.0, "after": None})
    assert not figures._improved({"before": 2.0, "after": 2.5})
    assert not figures._improved({"score": [0.5, 0.5]})
    assert load("incidents")["cases"]
