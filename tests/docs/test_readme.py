"""The README is true: its example runs, and what it points to exists."""

import doctest
import json
import os
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib import metadata

from benchmarks import figures
from benchmarks.result_files import fill
from tests.support import ROOT

README = ROOT / "README.md"


def test_the_readme_example_prints_what_the_readme_says():
    result = doctest.testfile(str(README), module_relative=False, raise_on_error=False)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_readme_example_and_the_quickstart_need_only_what_the_install_line_installs(tmp_path):
    script = tmp_path / "without_extras.py"
    script.write_text(WITHOUT_EXTRAS)
    page = ROOT / "docs" / "tutorial" / "quickstart.md"
    done = run_script(script, sorted(extra_packages()), README, page, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_example_that_needs_more_than_the_install_line_installs_is_noticed(tmp_path):
    script, page = tmp_path / "without_extras.py", tmp_path / "page.md"
    script.write_text(WITHOUT_EXTRAS)
    page.write_text("```python\nimport sklearn\n```\n")
    done = run_script(script, sorted(extra_packages()), README, page, folder=tmp_path, example=False)
    assert "No module named 'sklearn'" in done.stderr


# Runs the example of the first page and every block of the second, with all packages of the list hidden.
WITHOUT_EXTRAS = """
import doctest, json, shlex, sys
from importlib.machinery import PathFinder
from pathlib import Path

hidden, readme, page, example = json.loads(sys.argv[1])

class VisibleFinder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else super().find_spec(name, path, target)

from leadline.cli import main
from tests.support.page_commands import BLOCK, commands

sys.meta_path[sys.meta_path.index(PathFinder)] = VisibleFinder
if example:
    assert doctest.testfile(readme, module_relative=False).failed == 0
sys.path.insert(0, ".")
for language, title, block in BLOCK.findall(Path(page).read_text()):
    if title:
        Path(title).write_text(block)
    elif language == "python":
        exec(block, {})
    elif language == "sh":
        assert [main(shlex.split(line)[1:]) for line in commands(block)] == [0] * len(commands(block))
"""


def run_script(script, hidden, readme, page, *, folder, example=True):
    """Run a script in another process, in an empty folder, with these arguments."""
    return subprocess.run(
        [sys.executable, script, json.dumps([hidden, str(readme), str(page), example])],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def extra_packages() -> set[str]:
    """The modules of installed distributions that `pip install .` alone would not install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed, queue = set(), list(project["dependencies"])
    while queue:
        name = re.match(r"[\w.-]+", queue.pop())[0].lower().replace("_", "-")
        if name in needed:
            continue
        needed.add(name)
        with suppress(metadata.PackageNotFoundError):
            queue += [each for each in metadata.requires(name) or () if "extra ==" not in each]
    return {
        module
        for module, owners in metadata.packages_distributions().items()
        if not needed & {owner.lower().replace("_", "-") for owner in owners}
    } - {
        "leadline",
        "tests",
        "benchmarks",
        "examples",
        "pip",
        "setuptools",
        "pkg_resources",
        "_distutils_hack",
    }


def test_the_accuracy_table_is_what_the_stored_results_render_to():
    text = README.read_text()
    assert fill(text, "accuracy", figures.accuracy()) == text


def test_the_figures_in_the_text_are_those_of_the_stored_results():
    answers = {question: answer for question, answer, _, _ in figures.figures()}
    text = " ".join(README.read_text().split())
    depth = {
        scheme: answers[f"What does a language model of 1000 blocks reach? (`{scheme}`)"]
        for scheme in ("post", "residual-linear")
    }
    for answer in depth.values():
        assert all(number in text for number in re.findall(r"\d+\.\d+", answer)), answer


def test_the_readme_stays_short():
    assert len(README.read_text().splitlines()) <= 130


def test_the_changelog_has_a_place_for_verdicts():
    assert "### Verdicts" in (ROOT / "CHANGELOG.md").read_text()


def test_contributing_stays_short():
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) < 80


def test_the_citation_names_the_version_of_the_package():
    import leadline

    assert f"version: {leadline.__version__}\n" in (ROOT / "CITATION.cff").read_text()
