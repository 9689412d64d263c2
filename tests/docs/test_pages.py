"""Tutorial and how-tos are true: their files are written down, their Python and their commands run, in their order."""

import logging
import re
import shlex
import sys
import warnings
from pathlib import Path

import pytest
import torch

from leadline.cli import main
from tests.support import ROOT

DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = ["tutorial.md", *(f"howto/{page.name}" for page in sorted((DOCS / "howto").glob("*.md")))]
SLOW = {"tutorial.md", "nn.md"}  # a search for a repair, and a thousand blocks


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder in which we stand; files written there can be imported. Logging is as before afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    handlers, modules = list(logging.root.handlers), set(sys.modules)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(threads)
    logging.root.handlers[:] = handlers
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def run_page(text: str, folder: Path) -> list[str]:
    """Run a page's blocks in one namespace; the languages that were run."""
    names: dict[str, object] = {}
    done = []
    for language, title, block in BLOCK.findall(text):
        if title:
            (folder / title).write_text(block)
        elif language == "python":
            exec(compile(block, "page", "exec"), names)
        elif language == "console":
            for line in block.splitlines():
                words = shlex.split(line)
                assert words[0] == "leadline", line
                assert main(words[1:]) == 0, line
        done.append(language)
    return done


def marked(pages: list[str]) -> list[object]:
    return [pytest.param(page, marks=pytest.mark.slow if page in SLOW else ()) for page in pages]


@pytest.mark.parametrize("page", marked(PAGES))
def test_every_block_of_a_page_runs_in_the_order_of_the_page(page, folder, capsys):
    run_page((DOCS / page).read_text(), folder)


def test_the_first_half_of_the_tutorial_shows_a_network_that_stays_at_chance(folder, capsys):
    text = (DOCS / "tutorial.md").read_text()
    run_page(text.partition("## 3.")[0], folder)
    out = capsys.readouterr().out
    assert re.search(r"loss after two epochs: 2\.3\d; guessing", out)
    assert "I302" in out


def test_a_block_that_is_wrong_fails(folder):
    with pytest.raises(AssertionError):
        run_page("```python\nassert 1 == 2\n```\n", folder)
    with pytest.raises(AssertionError):
        run_page("```console\nleadline explain Q999\n```\n", folder)


RUN_ELSEWHERE = {
    "alarms.md": "integrations/test_integration_pages.py",
    "ci.md": "test_docs_ci.py",
    "fix.md": "test_docs_fix.py",
    "integrations.md": "integrations/test_integration_pages.py",
    "phase.md": "test_docs_lab.py",
    "race.md": "test_docs_lab.py",
    "report.md": "test_docs_report.py",
    "runs.md": "runs/test_docs_runs.py",
    "symmetry.md": "symmetry/test_page.py",
    "update.md": "updating/test_tables.py",
}
RUN_HERE = ["attribution.md", "nn.md", "quickstart.md", "theory.md", "watch.md", "weightless.md"]


def test_every_page_with_python_is_run_by_some_test():
    with_python = {
        str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if "\n```python" in page.read_text()
    }
    assert with_python - {*PAGES, *RUN_HERE, *RUN_ELSEWHERE} == set()
    tests = ROOT / "tests"
    assert all(page in (tests / test).read_text() for page, test in RUN_ELSEWHERE.items())


@pytest.mark.parametrize("page", marked(RUN_HERE))
def test_the_python_of_an_older_page_runs(page, folder, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_page((DOCS / page).read_text(), folder)
