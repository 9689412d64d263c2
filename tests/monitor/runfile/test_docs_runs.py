"""The page about run files is true: its code runs, and the names it lists exist."""

from __future__ import annotations

import re
import shlex

from benchmarks import run_file_cost
from leadline.cli import main
from leadline.monitor.runfile import Run
from tests.support import ROOT
from tests.support.page_commands import PARSED_ONLY, block_commands

PAGE = (ROOT / "docs" / "reference" / "runs.md").read_text()


def test_the_code_of_the_page_runs_and_then_its_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    for block in blocks:
        exec(compile(block, "docs/reference/runs.md", "exec"), {})
    rows = [f"{step},{3 - step / 50},{step},{3 - step / 50}" for step in range(100)]
    (tmp_path / "log.csv").write_text("\n".join(["step,loss,t,my_loss", *rows]))
    shown = [line for line in block_commands(PAGE) if line not in PARSED_ONLY]
    assert [line for line in shown if main(shlex.split(line)[1:]) != 0] == []
    assert len(shown) >= 5
    assert (tmp_path / "run.csv").exists()


def test_every_name_that_the_page_lists_is_there():
    names = set(re.findall(r"`run\.(\w+)", PAGE)) - {"leadline", "csv"}
    assert len(names) > 12
    assert [name for name in names if not hasattr(Run, name)] == []


def test_the_benchmark_behind_the_page_runs(capsys):
    run_file_cost.quick()
    assert capsys.readouterr().out.count("ratio") == 3
