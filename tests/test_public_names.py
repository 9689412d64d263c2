"""The public names of the packages that load them on first use."""

from __future__ import annotations

import re
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

import leadline
from leadline.monitor import runfile


def test_dir_lists_the_public_names():
    assert {"check", "nn", "testing"} <= set(dir(leadline))
    assert leadline.testing.assert_trainable is not None


def test_every_public_name_of_the_building_blocks_exists():
    assert dir(leadline.nn) == sorted(leadline.nn.__all__)
    assert all(getattr(leadline.nn, name) is not None for name in leadline.nn.__all__)


@pytest.mark.parametrize("package", [leadline, leadline.nn, runfile], ids=lambda package: package.__name__)
def test_an_unknown_name_raises_an_attribute_error(package):
    with pytest.raises(AttributeError, match="no attribute 'Runner'"):
        _ = package.Runner


ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FILE_ENDINGS = (".sarif", ".xml", ".json", ".html")
NAME = re.compile(r"(?<![\w./\[\"'-])leadline((?:\.[A-Za-z_]\w*)+)(\(?)(?![\w/:])")


def names_in(page: Path) -> list[tuple[str, bool]]:
    """The dotted names that begin with `leadline.` in a page, and whether each is called."""
    found = NAME.findall(page.read_text(encoding="utf-8"))
    return sorted({(path, call == "(") for path, call in found if path not in FILE_ENDINGS})


def is_reachable(path: str) -> bool:
    """Whether `import leadline` alone makes the name available."""
    try:
        attrgetter(path.removeprefix("."))(leadline)
    except AttributeError:
        return False
    return True


def is_importable(path: str) -> bool:
    """Whether the name is a module, or a name in one."""
    for module in (f"leadline{path}", f"leadline{path.rpartition('.')[0]}"):
        try:
            found = import_module(module)
        except ModuleNotFoundError:
            continue
        return module == f"leadline{path}" or hasattr(found, path.rpartition(".")[2])
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_name_of_leadline_in_the_docs_exists_and_every_call_works_after_import_leadline(page):
    wrong = [
        f"leadline{path}{'(...)' if is_called else ''}"
        for path, is_called in names_in(page)
        if not (is_reachable(path) if is_called else is_reachable(path) or is_importable(path))
    ]
    assert wrong == []


def test_nobody_is_told_to_install_leadline_from_an_index():
    files = [*PAGES, *sorted((ROOT / "src").rglob("*.py"))]
    told = re.compile(r"pip install\s+[\"']?leadline\b")
    assert [each.name for each in files if told.search(each.read_text(encoding="utf-8"))] == []
