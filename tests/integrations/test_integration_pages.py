"""The code on the pages about alarms and integrations runs unchanged."""

from __future__ import annotations

import re
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support import ROOT

DOCS = ROOT / "docs"
LIBRARIES = ("lightning", "transformers", "accelerate")


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL)


PAGES = [
    (page, index)
    for page in ("reference/alarms.md", "howto/integrations.md")
    for index in range(len(blocks(page)))
]


@pytest.mark.parametrize(("page", "index"), PAGES)
def test_a_block_of_the_page_runs(page: str, index: int, tmp_path: Path, monkeypatch):
    code = blocks(page)[index]
    missing = [
        name for name in LIBRARIES if re.search(rf"(import|from) {name}\b", code) and find_spec(name) is None
    ]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(code, f"{page}, block {index}", "exec"), {"__name__": "__main__"})


def test_every_page_has_code_to_run():
    assert {page for page, _ in PAGES} == {"reference/alarms.md", "howto/integrations.md"}
