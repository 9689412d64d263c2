"""The mutants are real changes, and a test that would fail notices them."""

import ast
import importlib
import sys
from pathlib import Path

import pytest

from benchmarks.mutation import child
from benchmarks.mutation.changes import SAMPLE, mutate, positions, sample
from benchmarks.mutation.executed_lines import FOLDERS, ROOT, SOURCE
from benchmarks.mutation.page import EQUIVALENT, render
from benchmarks.result_files import load

TEXT = "LIMIT = 6.0\n\n\ndef far(x):\n    return x > LIMIT and not x - 1 == 2\n"


def labels(text: str) -> list[str]:
    return [each.label for each in positions(text)]


def test_every_mutation_changes_the_program():
    count = len(positions(TEXT))
    changed = [ast.dump(mutate(TEXT, number)[1]) for number in range(count)]
    assert len({*changed, ast.dump(ast.parse(TEXT))}) == count + 1 == 9


@pytest.mark.parametrize("what", ["x > LIMIT -> x >= LIMIT", "x - 1 -> x + 1", "6.0 -> 9.0", "2 -> 3"])
def test_a_change_says_what_it_changed(what: str):
    changes = [mutate(TEXT, number)[0].partition(": ")[2] for number in range(8)]
    assert what in changes


def test_a_place_keeps_its_name_while_others_change():
    longer = "import math\n\nOTHER = 2\n\n\n" + TEXT.replace("6.0", "7.0")
    assert set(labels(TEXT)) - set(labels(longer)) == {"file: 6.0"}


def test_names_of_places_are_unique():
    assert labels("def far(x):\n    return x > 1 or x < 1\n")[-2:] == ["far: x < 1", "far: 1 (2)"]


@pytest.mark.parametrize(
    "text",
    [
        "def _example(x):\n    return 2 * x\n",
        "@rule(sick=_example(3))\ndef deep(x):\n    return x\n",
        "def deep(x=3):\n    return x\n",
        "class Deep:\n    size: int = 3\n",
        "WIDTH = 80\n",
        "def words(count):\n    return f'{count}' + ('s' if count > 1 else '')\n",
        "def move(x):\n    if x.is_cuda:  # pragma: no cover  (no such device)\n        return 1\n    return x\n",
    ],
    ids=["example", "decorator", "default", "field", "width", "plural", "another machine"],
)
def test_what_no_test_of_behavior_could_notice_is_left_as_it_is(text: str):
    assert labels(text) == []


def test_a_position_names_the_lines_and_the_constant_that_lead_to_its_tests():
    limit, *_, last = positions(
        "LIMIT = 6.0\n\n\ndef far(x):\n    if (\n        x > 2\n    ):\n        return x\n"
    )
    assert (limit.constant, limit.first_line) == ("LIMIT", 1)
    assert (last.constant, last.first_line, last.last_line) == (None, 5, 7)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "far_away.py"
    path.write_text(TEXT + "\n\nDOUBLE = 2 * LIMIT\n\n\ndef apply(f=lambda x: far(x)):\n    return f\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import far_away

    yield far_away
    del sys.modules["far_away"]


def test_a_change_reaches_functions_that_were_loaded_before(module):
    far, held = module.far, module.apply()
    text = Path(module.__file__).read_text()
    number = labels(text).index("far: not x - 1 == 2")
    assert (far(7), held(7), far(3)) == (True, True, False)
    child._apply(Path(module.__file__), mutate(text, number)[1], None)
    assert (far(7), held(7), far(3)) == (False, False, False)


def test_a_changed_constant_reaches_what_is_computed_of_it(module):
    text = Path(module.__file__).read_text()
    child._apply(Path(module.__file__), mutate(text, labels(text).index("file: 6.0"))[1], "LIMIT")
    assert (module.LIMIT, module.DOUBLE, module.far(7)) == (9.0, 18.0, False)


def test_a_change_reaches_a_file_that_a_test_loads_only_when_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "package" / "loaded_late.py"
    path.parent.mkdir()
    path.write_text(TEXT)
    monkeypatch.setattr(child, "SOURCE", path.parent)
    monkeypatch.syspath_prepend(str(tmp_path))
    number = labels(TEXT).index("far: not x - 1 == 2")
    child._apply(path, mutate(TEXT, number)[1], None)
    loaded = importlib.import_module("package.loaded_late")
    assert (loaded.far(7), loaded.far(3)) == (False, False)
    for name in ("package.loaded_late", "package"):
        del sys.modules[name]


@pytest.mark.slow
def test_the_sample_is_reproducible_and_covers_all_folders():
    first = sample()
    assert [each.key for each in first] == [each.key for each in sample()]
    assert {each.folder for each in first} == set(SAMPLE)


def test_folders_of_source_and_tests_exist():
    assert [folder for folder in SAMPLE if not (SOURCE / folder).is_dir()] == []
    assert [folder for folder in FOLDERS if not (ROOT / folder).is_dir()] == []


def test_only_survivors_that_were_run_are_called_equivalent():
    cases = load("mutation")["cases"]
    assert [key for key in EQUIVALENT if cases[key]["noticed"]] == []


def test_the_share_of_noticed_mutants_leaves_out_the_equivalent_ones(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(EQUIVALENT, "b", "the same")
    cases = {
        key: {"folder": "checks", "first": first, "noticed": noticed}
        for key, first, noticed in [("a", True, True), ("b", False, False), ("c", False, True)]
    }
    assert "| checks | 3 of 36 | 1 | 1 | 2 | 50% | 100% |" in render({"cases": cases})
