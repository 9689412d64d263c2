"""The tables of docs/explanation/update.md match the stored results, and its code and benchmarks run."""

from __future__ import annotations

import re

import pytest

from benchmarks import forecast, update, update_limits
from benchmarks.result_files import fill, load
from tests.support import ROOT

PAGE = ROOT / "docs" / "explanation" / "update.md"
TABLES = [
    ("update-limits", "update_limits", update_limits.render),
    ("update-cost", "update", update.render),
    ("forecast-exponents", "forecast", forecast.render_exponents),
    ("forecast-depths", "forecast", forecast.render_depths),
    ("forecast-widths", "forecast", forecast.render_widths),
]


@pytest.mark.parametrize(("mark", "results", "render"), TABLES)
def test_each_table_matches_the_stored_results(mark, results, render):
    text = PAGE.read_text()
    assert fill(text, mark, render(load(results))) == text


def test_the_code_of_the_page_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), {})
    assert "depth^" in capsys.readouterr().out


def test_the_cost_is_measured_relative_to_plain_steps(capsys):
    found = update.measure(lambda: update.workloads.mlp(layers=2, width=8, batch=4), rounds=2)
    assert found["reading"]["median"] > 1
