"""The workflow file calls the same make targets as .ci/run, with the versions that the project declares."""

import re
import tomllib

import pytest
import yaml

from tests.support import ROOT

WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
RUNS = [step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step]
TARGETS = {target for run in RUNS for target in re.findall(r"\bmake ([\w-]+)", run)}
MATRIX = WORKFLOW["jobs"]["test"]["strategy"]["matrix"]


def test_the_workflow_runs_every_target_that_has_to_pass():
    required = re.search(r"for target in (.*?); do", (ROOT / ".ci" / "run").read_text())
    assert required is not None
    assert set(required[1].split()) == TARGETS


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_a_target_of_the_workflow_exists(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_workflow_tests_the_newest_torch_that_is_pinned():
    pinned = re.search(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert MATRIX["torch"] == [pinned[1]]


def test_the_workflow_tests_the_lowest_torch_and_python_that_are_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    torch = next(each for each in project["dependencies"] if each.startswith("torch"))
    assert [row["torch"] for row in MATRIX["include"]] == [f"{torch.removeprefix('torch>=')}.0"]
    assert f">={MATRIX['python'][0]}" == project["requires-python"]
