"""docs/reference/report.md does what it says: its code runs, and its picture is of today."""

import re

from msgspec.structs import replace

from benchmarks import report_picture
from benchmarks.result_files import load
from tests.support import ROOT

PAGE = (ROOT / "docs" / "reference" / "report.md").read_text()


def test_the_code_on_the_page_writes_a_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "report.md", "exec"), {})
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_the_picture_is_small():
    assert (ROOT / "docs" / "images" / "report.png").stat().st_size < 150_000


def test_the_picture_shows_what_the_page_says_today():
    report = report_picture.pictured_report()
    assert report_picture.page_text(report) == load("picture")
    assert report_picture.page_text(replace(report, confidence=0.5)) != load("picture")
