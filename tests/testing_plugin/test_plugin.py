"""The pytest plugin in real runs of pytest: a fixture, a marker, an option, and no torch until a model is checked."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from leadline.records.report import Report
from tests.support import ROOT
from tests.support.pytest_plugin import LOAD, PLUGIN

NETS = """
import torch
from torch import nn

def sick():
    return nn.Linear(4, 4), torch.full((8, 4), torch.nan), torch.zeros(8, 4), nn.functional.mse_loss

def healthy():
    return nn.Linear(4, 4), torch.randn(8, 4), torch.zeros(8, 4), nn.functional.mse_loss
"""


@pytest.fixture
def pytest_run(pytester, monkeypatch):
    """`pytest_run(tests, *options)`: run pytest on these tests in a temporary folder."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makepyfile(plugin_nets=NETS)

    def run(tests: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=f"import pytest\nfrom plugin_nets import sick, healthy\n{tests}")
        return pytester.runpytest_inprocess(*LOAD, "-p", "no:cacheprovider", "--strict-markers", *options)

    return run


def test_the_fixture_passes_a_model_that_trains_and_fails_others(pytest_run):
    done = pytest_run(
        "def test_good(assert_trainable): assert_trainable(*healthy())\n"
        "def test_bad(assert_trainable): assert_trainable(*sick())\n"
    )
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*DOES NOT TRAIN: *", "*- leadline -*", "N701 non-finite: non_finite *"])
    done.stdout.no_fnmatch_line("*leadline/testing/__init__.py*")


def test_a_marker_allows_checks_or_changes_the_threshold(pytest_run):
    pytest_run(
        "@pytest.mark.leadline(allow=['non-finite'])\n"
        "def test_allowed(assert_trainable): assert_trainable(*sick())\n"
        "@pytest.mark.leadline(fail_on='never')\n"
        "def test_never(assert_trainable): assert_trainable(*sick())\n"
        "@pytest.mark.leadline(allow=['F'])\n"
        "def test_other(assert_trainable): assert_trainable(*sick())\n"
        "@pytest.mark.leadline(allow=['non-finit'])\n"
        "def test_typo(assert_trainable): assert_trainable(*sick())\n"
    ).assert_outcomes(passed=2, failed=2)


def test_markers_of_a_class_and_its_test_combine_and_the_nearest_threshold_counts(pytest_run):
    pytest_run(
        "@pytest.mark.leadline(allow=['F'], fail_on='never')\n"
        "class TestAll:\n"
        "    @pytest.mark.leadline(allow=['N'], fail_on='info')\n"
        "    def test_both(self, assert_trainable):\n"
        "        assert {each.code for each in assert_trainable(*sick()).ignored} == {'N701'}\n"
        "    @pytest.mark.leadline(fail_on='error')\n"
        "    def test_nearest(self, assert_trainable): assert_trainable(*sick())\n"
    ).assert_outcomes(passed=1, failed=1)


@pytest.mark.parametrize("line", ["ignore = ['N']", "select = ['F']", "fail-on = 'never'"])
def test_project_settings_apply_in_tests(pytest_run, pytester, line):
    pytester.makepyprojecttoml(f"[tool.leadline]\n{line}\n[tool.pytest.ini_options]\n")
    pytest_run("def test_it(assert_trainable): assert_trainable(*sick())\n").assert_outcomes(passed=1)


def test_a_mistake_in_the_settings_is_an_error_of_the_tests_that_use_the_fixture(pytest_run, pytester):
    pytester.makepyprojecttoml("[tool.leadline]\nfail_on = 'error'\n[tool.pytest.ini_options]\n")
    done = pytest_run("def test_it(assert_trainable): pass\ndef test_other(): pass\n")
    done.assert_outcomes(passed=1, errors=1)
    done.stdout.fnmatch_lines(["*did you mean fail-on?*"])


def test_reports_of_failures_can_be_saved(pytest_run, pytester):
    done = pytest_run(
        "@pytest.mark.parametrize('name', ['a/b', '..'])\n"
        "def test_bad(assert_trainable, name): assert_trainable(*sick())\n"
        "def test_good(assert_trainable): assert_trainable(*healthy())\n",
        "--leadline-reports=kept/here",
    )
    saved = sorted(Path(pytester.path, "kept", "here").iterdir())
    assert [path.name for path in saved] == ["test_it.py-test_bad-..-.json", "test_it.py-test_bad-a-b-.json"]
    assert all(Report.from_json(path.read_text()).verdict == "fails" for path in saved)
    done.stdout.fnmatch_lines(["leadline report kept/here/test_it.py-test_bad-a-b-.json"])


def test_the_plain_function_gets_a_section_in_the_output(pytest_run):
    done = pytest_run(
        "from leadline.testing import assert_trainable\ndef test_bad(): assert_trainable(*sick())\n"
    )
    done.stdout.fnmatch_lines(["*- leadline -*", "N701 non-finite: non_finite *"])


WITHOUT_TORCH = """
import sys, pytest
class Look:
    def pytest_sessionfinish(self):
        print("heavy:", [name for name in ("torch", "rich", "click", "msgspec") if name in sys.modules])
sys.exit(pytest.main(sys.argv[1:], plugins=[Look()]))
"""


def test_torch_is_not_imported_unless_the_plugin_is_used(tmp_path):
    (tmp_path / "test_plain.py").write_text("def test_it(): pass\n")
    options = ["-p", PLUGIN, "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *options, str(tmp_path)],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # other plugins may import torch
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "heavy: []" in done.stdout


@pytest.mark.slow
def test_pytest_finds_the_plugin_by_the_entry_point_of_the_package(tmp_path):
    """The test writes the metadata that an installer would write, from pyproject.toml."""
    root = ROOT
    points = tomllib.loads((root / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    info = tmp_path / "leadline-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: leadline\nVersion: 0\n")
    (info / "RECORD").write_text("leadline/__init__.py,,\nleadline/testing/plugin.py,,\n")
    (info / "entry_points.txt").write_text(
        "\n".join(["[pytest11]", *(f"{k} = {v}" for k, v in points.items())])
    )
    (tmp_path / "test_it.py").write_text("def test_it(assert_trainable, pytestconfig): pass\n")
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--strict-markers",
            "test_it.py",
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(root / "src")])},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
