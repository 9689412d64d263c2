"""The life of a baseline on the command line: written, kept, outgrown, written again."""

import json
from pathlib import Path

import pytest

SICK = "nets.py:poisoned"
KNOWN = ("--baseline", "known.json")


def entries():
    return json.loads(Path("known.json").read_text())["findings"]


def test_a_baseline_from_its_writing_to_its_end(run):
    assert run("check", SICK).code == 1

    written = run("check", SICK, "--write-baseline", "known.json")
    assert written.code == 0
    assert "of 1 target written" in written.err
    assert {entry["code"] for entry in entries()} == {"N701"}

    again = run("check", SICK, *KNOWN)
    assert (again.code, again.err) == (0, "")
    assert again.out.startswith("DOES NOT TRAIN")
    assert "N701 non-finite (known)" in again.out

    source = Path("nets.py").read_text()
    Path("nets.py").write_text(source.replace("torch.full((8, 4), torch.nan)", "torch.randn(8, 4)"))
    cured = run("check", SICK, *KNOWN)
    assert cured.code == 0
    assert cured.err.count("no longer found: N701 non-finite") == len(entries())
    assert "--write-baseline known.json" in cured.err

    assert run("check", SICK, "--write-baseline", "known.json").code == 0
    assert entries() == []
    Path("nets.py").write_text(source)
    assert run("check", SICK, *KNOWN).code == 1


def test_a_finding_worse_than_its_baseline_entry_fails(run):
    run("check", SICK, "--write-baseline", "known.json")
    Path("known.json").write_text(Path("known.json").read_text().replace('"error"', '"warning"'))
    done = run("check", SICK, *KNOWN)
    assert done.code == 1
    assert "no longer found" not in done.err


def test_a_baseline_does_not_decide_what_is_undecided(run):
    assert run("check", "nets.py:weightless", "--write-baseline", "known.json").code == 3


def test_targets_share_a_file_and_keep_their_own_entries(run):
    run("check", SICK, "nets.py:healthy", "--write-baseline", "known.json")
    run("check", "nets.py:healthy", "--write-baseline", "known.json")
    assert {entry["target"] for entry in entries()} == {SICK}
    assert run("check", "nets.py:healthy", *KNOWN).err == ""


def test_the_project_names_its_baseline_from_wherever_the_check_is_started(run, monkeypatch):
    Path("pyproject.toml").write_text(f'[tool.leadline]\nbaseline = "known.json"\ntargets = ["{SICK}"]\n')
    assert run("check", "--write-baseline", "known.json").code == 0
    Path("below").mkdir()
    monkeypatch.chdir("below")
    assert run("check").code == 0


def test_ignored_findings_are_not_written(run):
    run("check", SICK, "--ignore", "N", "--write-baseline", "known.json")
    assert entries() == []


@pytest.mark.parametrize("form", ["github", "junit", "jsonl", "sarif", "md"])
def test_known_findings_fail_in_no_format(run, form):
    run("check", SICK, "--write-baseline", "known.json")
    done = run("check", SICK, *KNOWN, "--format", form)
    assert done.code == 0
    assert "::error" not in done.out
    assert "<failure" not in done.out
