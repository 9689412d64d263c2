"""`leadline fixes` and `leadline explain NAME`: the pages of the fixes, without torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from leadline.fixes import all_fixes


@pytest.mark.parametrize("fix", all_fixes(), ids=lambda fix: fix.name)
def test_a_fix_is_explained_by_its_name(run, fix):
    done = run("explain", fix.name)
    assert done.code == 0
    assert fix.name in done.out
    assert "Findings that it is tried for" in done.out


def test_the_page_of_a_check_names_the_fixes_that_are_tried_for_it(run):
    done = run("explain", "I302")
    assert "Fixes that are tried for it" in done.out
    names = [fix.name for fix in all_fixes() if "I302".startswith(fix.answers)]
    assert "critical-init" in names
    assert all(name in done.out for name in names)


def test_fixes_are_listed_as_text_and_as_json(run):
    text = run("fixes").out
    assert all(fix.name in text for fix in all_fixes())
    rows = json.loads(run("fixes", "--format", "json").out)
    assert [row["name"] for row in rows] == [fix.name for fix in all_fixes()]
    assert list(rows[0]) == ["name", "answers", "reach", "since", "summary"]


WITHOUT_TORCH = """
import sys
from leadline.cli import main
assert main(["fixes"]) == 0
assert main(["explain", "critical-init"]) == 0
assert main(["fix", "nowhere.py:make"]) == 2
sys.exit("torch was imported" if "torch" in sys.modules else 0)
"""


def test_fixes_are_listed_and_explained_without_torch():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
