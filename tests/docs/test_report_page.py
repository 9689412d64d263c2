"""docs/reference/report.md does what it says: its code and its commands run, and its picture is of today."""

import re
import shlex
import sys

import pytest
from msgspec.structs import replace

from benchmarks import report_picture
from benchmarks.result_files import load
from leadline.cli import main
from tests.support import ROOT
from tests.support.page_commands import block_commands

pytestmark = pytest.mark.long

PAGE = (ROOT / "docs" / "reference" / "report.md").read_text()


def test_the_code_on_the_page_writes_a_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "report.md", "exec"), {})
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


PROGRAM = """
import torch
from torch import nn


def build(depth):
    torch.manual_seed(0)
    layers = [part for _ in range(depth) for part in (nn.Linear(8, 8), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(8, 4))
    inputs, targets = torch.randn(32, 8), torch.randint(4, (32,))
    return model, inputs, targets, nn.functional.cross_entropy, torch.optim.Adam(model.parameters(), lr=1e-2)


def make_case():
    return build(2)
"""


def test_every_command_on_the_page_writes_its_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "train", raising=False)
    (tmp_path / "train.py").write_text(PROGRAM)
    for name in ("saved.json", "before.json", "after.json"):
        assert main(["check", "train.py:make_case", "--format", "json", "--output", name]) == 0
    shown = list(block_commands(PAGE))
    assert len(shown) >= 5
    for line in shown:
        words = shlex.split(line)
        page = tmp_path / words[words.index("--html") + 1]
        page.unlink(missing_ok=True)
        assert main(words[1:]) == 0, line
        assert page.read_text().startswith("<!doctype html>"), line


def test_the_picture_is_small():
    assert (ROOT / "docs" / "images" / "report.png").stat().st_size < 150_000


def test_the_picture_shows_what_the_page_says_today():
    report = report_picture.pictured_report()
    assert report_picture.page_text(report) == load("picture")
    assert report_picture.page_text(replace(report, confidence=0.5)) != load("picture")
