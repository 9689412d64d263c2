"""The page about CI is true: its files are written down as they stand there, and its commands are run on them."""

from __future__ import annotations

import re
import shlex
import sys
from typing import NamedTuple

import pytest
import yaml

from leadline.cli import main
from leadline.config import EXAMPLES, read_config
from tests.support import ROOT
from tests.support.pytest_plugin import LOAD

PAGE = ROOT / "docs" / "howto" / "ci.md"
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    language: str
    title: str
    text: str


BLOCKS = [Block(*found) for found in BLOCK.findall(PAGE.read_text())]
FILES = [block for block in BLOCKS if block.title]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with the files of the page, except its settings; we stand in it."""
    monkeypatch.chdir(tmp_path)
    for block in FILES:
        path = tmp_path / block.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
    monkeypatch.delitem(sys.modules, "train", raising=False)
    (tmp_path / "pyproject.toml").rename(tmp_path / "settings.toml")
    return tmp_path


def commands() -> list[str]:
    """Every command of Leadline on the page: in shell blocks and in the steps of workflows."""
    lines = [line for block in BLOCKS if block.language == "sh" for line in block.text.splitlines()]
    for block in BLOCKS:
        if block.language == "yaml" and "workflows" in block.title:
            steps = yaml.safe_load(block.text)["jobs"]["check"]["steps"]
            lines += [step["run"] for step in steps if step.get("run", "").startswith("leadline")]
    return lines


def test_the_page_has_blocks_of_each_kind_and_no_other():
    assert {block.language for block in BLOCKS} == {"python", "sh", "yaml", "toml"}
    assert len(commands()) >= 8


def test_every_command_of_the_page_runs_in_the_order_of_the_page(project, capsys):
    for command in commands():
        words = shlex.split(command.partition(">>")[0])
        assert words[0] == "leadline"
        assert main(words[1:]) == 0, command
    assert (project / "leadline.xml").exists()
    assert (project / "leadline-baseline.json").exists()


def test_the_tests_of_the_page_pass(project, pytester, monkeypatch):
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(project)
    done = pytester.runpytest_inprocess(*LOAD, "-p", "no:cacheprovider", project / "test_train.py")
    done.assert_outcomes(passed=2)


def test_the_plain_python_of_the_page_runs(project, monkeypatch):
    monkeypatch.syspath_prepend(project)
    for block in BLOCKS:
        if block.language == "python" and not block.title:
            exec(compile(block.text, str(PAGE), "exec"), {})


def test_the_settings_of_the_page_are_read_and_are_all_there_are(project):
    config = read_config(project / "settings.toml")
    assert config.targets == ("train.py:make_case",)
    text = (project / "settings.toml").read_text()
    assert re.findall(r"^([\w-]+) =", text, re.MULTILINE) == list(EXAMPLES)


def test_the_hook_of_the_page_checks_the_targets_of_the_settings(project, capsys):
    (hook,) = yaml.safe_load((project / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    words = shlex.split(hook["entry"])
    main(["check", "train.py:make_case", "--write-baseline", "leadline-baseline.json"])
    assert main([*words[1:], "--config", "settings.toml"]) == 0


def test_the_tables_of_targets_on_the_page_are_read(project):
    (tables,) = [block.text for block in BLOCKS if block.language == "toml" and not block.title]
    (project / "tables.toml").write_text(tables)
    config = read_config(project / "tables.toml")
    assert config.targets == ("train.py:make_case", "train.py:make_deep_case")
    assert config.per_target["train.py:make_deep_case"].fail_on == "error"
