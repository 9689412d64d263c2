"""Versions in the metadata of checks and fixes are versions of the package."""

from __future__ import annotations

import re

import pytest

from leadline import __version__
from leadline.checks import all_checks
from leadline.fixes import all_fixes
from tests.support import ROOT

RELEASES = re.findall(r"^## \[(\d[\d.]*)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
VERSIONS = {*RELEASES, __version__}


@pytest.mark.parametrize("each", [*all_checks(), *all_fixes()], ids=lambda each: each.name)
def test_a_check_or_fix_exists_since_a_version_that_exists(each):
    assert each.since in VERSIONS
