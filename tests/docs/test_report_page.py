"""docs/reference/report.md does what it says: its code runs, and its commands have the options that it names."""

import re

import pytest
from msgspec.structs import replace

from benchmarks import report_picture
from benchmarks.result_files import load
from leadline.cli import load_command
from tests.support import ROOT

PAGE = (ROOT / "docs" / "reference" / "report.md").read_text()
COMMANDS = re.findall(r"^leadline (\w+) .*?(--[\w-]+)", PAGE, re.M)


def test_the_code_on_the_page_writes_a_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "report.md", "exec"), {})
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_the_page_shows_commands():
    assert len(COMMANDS) >= 5


@pytest.mark.parametrize(("command", "option"), COMMANDS)
def test_a_command_on_the_page_has_its_option(command, option):
    options = {name for each in load_command(command).params for name in each.opts}
    assert option in options


def test_the_picture_is_small():
    assert (ROOT / "docs" / "images" / "report.png").stat().st_size < 150_000


def test_the_picture_shows_what_the_page_says_today():
    report = report_picture.pictured_report()
    assert report_picture.page_text(report) == load("picture")
    assert report_picture.page_text(replace(report, confidence=0.5)) != load("picture")
