"""The commands of the README and of docs/howto/run.md do what the pages say."""

from __future__ import annotations

import re
import shlex
import shutil

import pytest

from tests.support import ROOT
from tests.support.page_commands import block_commands
from tests.support.program_runs import run_python

OUTPUT = re.compile(r"^```output\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path):
    """A folder with the program of the pages."""
    (tmp_path / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "train.py", tmp_path / "examples")
    return tmp_path


def report_lines(text):
    """The lines of the report, without those in which a time of day or a duration stands."""
    return [line.rstrip() for line in text.splitlines() if not line.startswith("leadline: ") and line.strip()]


@pytest.mark.slow
def test_the_first_example_of_the_readme_prints_what_it_shows(folder):
    text = (ROOT / "README.md").read_text()
    command = next(line for line in block_commands(text) if line.startswith("leadline run"))
    result = run_python(["-m", *shlex.split(command)], folder)
    assert report_lines(result.err) == report_lines(OUTPUT.search(text)[1])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_of_the_page_that_stop_the_program_find_the_missing_mask(folder):
    lines = [
        line for line in block_commands((ROOT / "docs" / "howto" / "run.md").read_text()) if " -- " in line
    ]
    assert len(lines) == 3
    for line in lines:
        result = run_python(["-m", *shlex.split(line)], folder)
        assert result.code == 1
        assert "the model can see the answers" in result.out
