"""`leadline fixes` and `leadline explain NAME`: what the files of the fixes say, without torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from leadline.cli.metadata import all_pages, answering
from leadline.fixes import all_fixes


def test_the_catalogue_says_what_the_fixes_are():
    read = [(page.name, page.answers, page.reach, page.since, page.doc) for page in all_pages()]
    assert read == [(each.name, each.answers, each.reach, each.since, each.doc) for each in all_fixes()]


@pytest.mark.parametrize("fix", all_fixes(), ids=lambda fix: fix.name)
def test_a_fix_is_explained_by_its_name(run, fix):
    done = run("explain", fix.name)
    assert done.code == 0
    assert fix.name in done.out
    assert "Findings that it is tried for" in done.out


def test_a_rule_names_the_fixes_that_are_tried_for_it(run):
    done = run("explain", "I302")
    assert "Fixes that are tried for it" in done.out
    assert all(page.name in done.out for page in answering("I302"))


def test_fixes_are_listed_for_readers_and_for_machines(run):
    assert all(fix.name in run("fixes").out for fix in all_fixes())
    rows = json.loads(run("fixes", "--format", "json").out)
    assert [row["name"] for row in rows] == [fix.name for fix in all_fixes()]


WITHOUT_TORCH = """
import sys
from leadline.cli import main
assert main(["fixes"]) == 0
assert main(["explain", "critical-init"]) == 0
assert main(["fix", "nowhere.py:make"]) == 2
sys.exit("torch was imported" if "torch" in sys.modules else 0)
"""


def test_fixes_are_told_without_torch():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
