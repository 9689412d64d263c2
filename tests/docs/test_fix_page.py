"""The page about repair is true: its file, its commands and its Python run one after another in one folder."""

from __future__ import annotations

import re
import shlex
import sys

from leadline.cli import main
from leadline.cli.metadata import all_pages
from leadline.fixes._engine.comparison import LEAST, SIGMAS
from leadline.fixes._engine.proofs import ASIDE, CONFIRM_LONGER
from leadline.fixes._engine.reference import ENOUGH, HALF, WIDTH
from leadline.fixes._engine.search import STEADIER
from leadline.fixes._engine.trial import DEFAULT_RATE, MOST_STEPS
from leadline.fixes._engine.verify import KEPT
from leadline.records.update import MIN_FALLING_PROGRESS, MIN_LEARNED_PROGRESS
from leadline.report.repair import REACHES
from tests.support import ROOT

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
        elif language == "console":
            assert [main(shlex.split(line)[1:]) for line in text.splitlines()] == [0] * len(text.splitlines())
        else:
            exec(text, names)
    monkeypatch.delitem(sys.modules, "train", raising=False)
    out = capsys.readouterr().out
    assert "DOES NOT TRAIN → TRAINS" in out
    assert "fails → trains" in out


def test_the_numbers_of_the_page_are_those_of_the_code():
    assert (KEPT, SIGMAS, LEAST, DEFAULT_RATE, CONFIRM_LONGER) == (1e-9, 2.0, 0.01, 1e-3, 3)
    assert f"At most {CONFIRM_LONGER * MOST_STEPS} are read" in PAGE
    assert all(f"| {each} |" in PAGE for each in REACHES.values())
    assert (HALF, ENOUGH, MIN_FALLING_PROGRESS, MIN_LEARNED_PROGRESS, ASIDE, STEADIER) == (
        0.5,
        0.75,
        0.1,
        0.2,
        3.0,
        0.1,
    )
    assert f"one hidden layer of {WIDTH} units" in PAGE
    assert f"If {MOST_STEPS} steps decide nothing" in PAGE


def test_every_fix_has_a_page_made_of_its_docstring(hooks):
    for fix in all_pages():
        page = hooks.fix_page(fix)
        assert page.startswith(f"# {fix.name}\n")
        assert fix.doc in page
        assert f"[{fix.name}]({fix.name}.md)" in hooks.fixes_index(all_pages())
