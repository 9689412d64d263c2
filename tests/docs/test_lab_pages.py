"""The pages about races and phase diagrams are true: their Python runs, their commands parse, their pictures are drawn
from the stored results."""

import re
import shlex

import pytest

from benchmarks import phase
from benchmarks.result_files import load
from leadline.cli import load_command
from leadline.lab.phase.page import draw
from tests.support import ROOT

DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["lab-notes/race.md", "lab-notes/phase.md"])
def test_every_block_of_the_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall((DOCS / page).read_text())
    assert {language for language, _ in blocks} == {"python", "console"}
    for language, text in blocks:
        if language == "python":
            exec(text, {})
            continue
        for line in text.splitlines():  # minutes each, so they are parsed and not run
            _, name, *arguments = shlex.split(line.removeprefix("$ "))
            load_command(name).make_context(name, arguments)


def test_pictures_of_diagrams_are_drawn_from_the_stored_results():
    for kind, found in phase.diagrams(load("phase")).items():
        assert (DOCS / "images" / f"phase-{kind}.svg").read_text() == draw(found) + "\n"
