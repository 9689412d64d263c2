"""The pages about races and phase diagrams are true: their Python runs, their pictures are drawn
from the stored results."""

import re

import pytest

from benchmarks import phase
from benchmarks.result_files import load
from leadline.lab.phase.page import draw
from tests.support import ROOT
from tests.support.page_commands import PARSED_ONLY, commands

DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["lab-notes/race.md", "lab-notes/phase.md"])
def test_every_block_of_the_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall((DOCS / page).read_text())
    assert {language for language, _ in blocks} == {"python", "sh"}
    for language, text in blocks:
        if language == "python":
            exec(text, {})
        else:  # minutes each, so `test_commands.py` parses them
            assert set(commands(text)) <= set(PARSED_ONLY)


def test_pictures_of_diagrams_are_drawn_from_the_stored_results():
    for kind, found in phase.diagrams(load("phase")).items():
        assert (DOCS / "images" / f"phase-{kind}.svg").read_text() == draw(found) + "\n"
