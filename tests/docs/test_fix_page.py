"""The page about repair is true: its file, its commands and its Python run one after another in one folder."""

from __future__ import annotations

import re
import shlex
import sys

import pytest

from leadline.cli import main
from leadline.fixes._engine.proofs import CONFIRMATION_LENGTH
from leadline.fixes._engine.reference import HIDDEN_WIDTH
from leadline.fixes._engine.trial import MAX_TRIAL_STEPS
from leadline.report.pages.repair import REACH_NAMES
from tests.support import ROOT

pytestmark = pytest.mark.long

PAGE = (ROOT / "docs" / "reference" / "fix.md").read_text()
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_block_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "train", raising=False)
    names: dict[str, object] = {}
    for language, title, text in BLOCK.findall(PAGE):
        if title:
            (tmp_path / title).write_text(text)
        elif language == "sh":
            assert [main(shlex.split(line)[1:]) for line in text.splitlines()] == [0] * len(text.splitlines())
        else:
            exec(text, names)
    monkeypatch.delitem(sys.modules, "train", raising=False)
    out = capsys.readouterr().out
    assert "DOES NOT TRAIN → TRAINS" in out
    assert "fails → trains" in out


def test_the_numbers_of_the_page_are_those_of_the_code():
    assert f"At most {CONFIRMATION_LENGTH * MAX_TRIAL_STEPS} are read" in PAGE
    assert all(f"| {each} |" in PAGE for each in REACH_NAMES.values())
    assert f"one hidden layer of {HIDDEN_WIDTH} units" in PAGE
    longest = CONFIRMATION_LENGTH * MAX_TRIAL_STEPS
    assert (
        f"A trial takes {MAX_TRIAL_STEPS} steps. If it is inconclusive, the best candidate gets {longest}."
        in PAGE
    )
