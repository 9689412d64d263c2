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
from tests.support.page_commands import BLOCK, PARSED_ONLY, commands

DOCS = ROOT / "docs"
# These pages have a test of their own: their blocks need more than an empty folder, or what they print is compared.
RUN_ELSEWHERE = {
    "explanation/symmetry.md": "readings/symmetry/test_page.py",
    "explanation/update.md": "readings/update/test_tables.py",
    "howto/ci.md": "docs/test_ci_page.py",
    "howto/integrations.md": "integrations/test_integration_pages.py",
    "howto/reading.md": "docs/test_pages.py",
    "howto/run.md": "runner/test_run_page.py",
    "lab-notes/phase.md": "docs/test_lab_pages.py",
    "lab-notes/race.md": "docs/test_lab_pages.py",
    "reference/alarms.md": "integrations/test_integration_pages.py",
    "reference/fix.md": "docs/test_fix_page.py",
    "reference/report.md": "docs/test_report_page.py",
    "reference/runs.md": "monitor/runfile/test_docs_runs.py",
}
# A search for a repair, a thousand blocks, and a claim of the lab, which tests/lab/test_every_claim.py tests by itself.
SLOW = {"tutorial/first-repair.md", "reference/nn.md", "lab-notes/claims.md"}
PAGES = [
    name
    for page in sorted(DOCS.rglob("*.md"))
    if (name := page.relative_to(DOCS).as_posix()) not in RUN_ELSEWHERE
    and re.search(r"^```(python|sh)$", page.read_text(), re.MULTILINE)
]


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
            sys.modules.pop(Path(title).stem, None)  # a page before this one may have had a file of that name
        elif language == "python":
            exec(compile(block, "page", "exec"), names)
        elif language == "sh":
            for line in commands(block):
                if line in PARSED_ONLY:
                    continue
                words = shlex.split(line)
                assert words[0] == "leadline", line
                assert main(words[1:]) == 0, line
        done.append(language)
    return done


def marked(pages: list[str]) -> list[object]:
    return [pytest.param(page, marks=pytest.mark.slow if page in SLOW else ()) for page in pages]


@pytest.mark.parametrize("page", marked(PAGES))
def test_every_block_of_a_page_runs_in_the_order_of_the_page(page, folder, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_page((DOCS / page).read_text(), folder)


def test_the_first_half_of_the_tutorial_shows_a_network_that_stays_at_chance(folder, capsys):
    text = (DOCS / "tutorial" / "first-repair.md").read_text()
    run_page(text.partition("## 3.")[0], folder)
    out = capsys.readouterr().out
    assert re.search(r"loss after two epochs: 2\.3\d; guessing", out)
    assert "I302" in out


def test_a_block_that_is_wrong_fails(folder):
    with pytest.raises(AssertionError):
        run_page("```python\nassert 1 == 2\n```\n", folder)
    with pytest.raises(AssertionError):
        run_page("```sh\nleadline explain Q999\n```\n", folder)


@pytest.mark.parametrize(("page", "test"), RUN_ELSEWHERE.items())
def test_a_page_that_is_run_elsewhere_is_named_by_the_test_that_runs_it(page, test):
    assert (DOCS / page).exists()
    assert page.rpartition("/")[2] in (ROOT / "tests" / test).read_text()


def skeleton(text: str) -> list[str]:
    """The labels of a printed report: the first words of each line that starts at the left margin."""
    return [re.match(r"[^\W\d_]+(?: [a-z]+)?", line)[0] for line in text.splitlines() if line[:1].isalpha()]


def test_the_page_about_reading_a_report_shows_what_a_report_prints(folder, capsys):
    text = (DOCS / "howto" / "reading.md").read_text()
    shown = next(block for language, _, block in BLOCK.findall(text) if language == "text")
    run_page(text, folder)
    printed = capsys.readouterr().out
    assert skeleton(shown) == skeleton(printed)[: len(skeleton(shown))]
    labels = {"forward", "backward", "training"}
    on_demand = {"jumps", "theory", "one step", "by depth", "symmetry"}
    assert {label for label in labels if label not in printed} == set()
    assert {label for label in on_demand if f"\n{label} " in printed} == set()
    assert {label for label in labels | on_demand if f"**{label}**" not in text} == set()
    assert {word for word in ("first", "last", "per block") if f"**{word}**" not in text} == set()
