"""The page about run files is true: its code runs, and the names it lists exist."""

from __future__ import annotations

import re

from benchmarks import run_file_cost
from leadline.monitor.runfile import Run
from tests.support import ROOT

PAGE = (ROOT / "docs" / "reference" / "runs.md").read_text()


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    for block in blocks:
        exec(compile(block, "docs/reference/runs.md", "exec"), {})


def test_every_name_that_the_page_lists_is_there():
    names = set(re.findall(r"`run\.(\w+)", PAGE)) - {"leadline", "csv"}
    assert len(names) > 12
    assert [name for name in names if not hasattr(Run, name)] == []


def test_the_benchmark_behind_the_page_runs(capsys):
    run_file_cost.quick()
    assert capsys.readouterr().out.count("ratio") == 3
