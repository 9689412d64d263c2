"""The workflow files call the same make targets as .ci/run, with the versions that the project declares."""

import re
import tomllib

import pytest
import yaml

import leadline
from tests.support import ROOT

WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text())
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))
}
REQUIRED = re.search(r"for target in (.*?); do", (ROOT / ".ci" / "run").read_text())
MATRIX = WORKFLOWS["ci"]["jobs"]["test"]["strategy"]["matrix"]


def targets(workflow):
    """The make targets that a workflow runs."""
    steps = [step for job in WORKFLOWS[workflow]["jobs"].values() for step in job["steps"]]
    return {target for step in steps for target in re.findall(r"\bmake ([\w-]+)", step.get("run", ""))}


def test_the_workflow_runs_every_target_that_has_to_pass():
    assert REQUIRED is not None
    assert set(REQUIRED[1].split()) == targets("ci")


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_workflow_calls_make_targets_that_exist(workflow):
    makefile = (ROOT / "Makefile").read_text()
    assert targets(workflow)
    assert [each for each in targets(workflow) if not re.search(rf"^{each}:", makefile, re.MULTILINE)] == []


def test_the_workflow_tests_the_newest_torch_that_is_pinned():
    pinned = re.search(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert MATRIX["torch"] == [pinned[1]]


def test_the_workflow_tests_the_lowest_torch_and_python_that_are_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    torch = next(each for each in project["dependencies"] if each.startswith("torch"))
    assert [row["torch"] for row in MATRIX["include"]] == [f"{torch.removeprefix('torch>=')}.0"]
    assert f">={MATRIX['python'][0]}" == project["requires-python"]
    named = {each.rpartition(" ")[2] for each in project["classifiers"] if ":: Python :: 3." in each}
    assert named == set(MATRIX["python"])


def test_a_release_is_published_only_after_the_tests_and_the_trial_of_the_wheel():
    jobs = WORKFLOWS["release"]["jobs"]
    assert set(jobs["publish"]["needs"]) == {"test", "dist"}
    assert {"test", "dist", "lint", "types"} <= targets("release")


def test_only_the_job_that_publishes_can_prove_who_it_is():
    release, site = WORKFLOWS["release"], WORKFLOWS["docs"]
    holders = [
        (name, job)
        for workflow in (release, site)
        for name, job in workflow["jobs"].items()
        if "id-token" in job.get("permissions", {})
    ]
    assert [name for name, _ in holders] == ["publish", "deploy"]
    assert all("run" not in step for _, job in holders for step in job["steps"])
    assert release["permissions"] == site["permissions"] == {"contents": "read"}


def test_the_tag_is_compared_with_the_line_that_holds_the_version():
    steps = WORKFLOWS["release"]["jobs"]["dist"]["steps"]
    command = next(step["run"] for step in steps if "GITHUB_REF_NAME" in step.get("run", ""))
    line = re.search(r'-qxF "(.+)" (\S+)$', command)
    assert line is not None
    wanted = line[1].replace('\\"', '"').replace("${GITHUB_REF_NAME#v}", leadline.__version__)
    assert wanted in (ROOT / line[2]).read_text().splitlines()
