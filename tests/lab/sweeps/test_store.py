"""Finished cells survive a killed run, and merging the files of several machines is idempotent."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.errors import InputError, SchemaError
from leadline.lab.sweeps import CellStore, cell_key

SETTINGS = st.dictionaries(st.text(max_size=3), st.integers() | st.floats() | st.text(max_size=3), max_size=3)


@given(SETTINGS)
def test_the_order_of_settings_does_not_change_the_key(settings):
    assert cell_key(dict(reversed(settings.items())), "1") == cell_key(settings, "1")


def test_other_settings_have_another_key():
    assert len({cell_key({"x": x}, "1") for x in (1, 1.5, "1", None, math.nan, math.inf)}) == 6


def test_a_stored_cell_is_read_again(tmp_path):
    path = tmp_path / "cells.jsonl"
    CellStore(path).add("a", {"x": 1}, {"loss": math.nan})
    assert list(CellStore(path).items()) == [("a", {"x": 1}, {"loss": "NaN"})]


def test_a_stored_result_looks_the_same_before_and_after_it_is_read(tmp_path):
    path = tmp_path / "cells.jsonl"
    store = CellStore(path)
    store.add("a", {"x": (1, 2)}, {"curve": (1.0, math.inf)})
    assert list(store.items()) == list(CellStore(path).items())


def test_an_incomplete_last_line_loses_only_that_cell(tmp_path):
    path = tmp_path / "cells.jsonl"
    store = CellStore(path)
    for key in "abc":
        store.add(key, {}, 1)
    path.write_bytes(path.read_bytes()[:-9])
    torn = CellStore(path)
    assert ("b" in torn, "c" in torn, torn.torn) == (True, False, 1)
    torn.add("c", {}, 2)
    reread = CellStore(path)
    assert (reread["a"], reread["b"], reread["c"]) == (1, 1, 2)


def test_the_first_result_of_a_key_stays(tmp_path):
    store = CellStore(tmp_path / "cells.jsonl")
    store.add("a", {}, 1)
    store.add("a", {}, 2)
    assert store["a"] == 1
    assert len((tmp_path / "cells.jsonl").read_text().splitlines()) == 1


def test_merging_is_idempotent(tmp_path):
    one, two = CellStore(tmp_path / "one"), CellStore(tmp_path / "two")
    for key in "abc":
        one.add(key, {}, key)
    for key in "cde":
        two.add(key, {}, key)
    assert one.merge(tmp_path / "two") == 2
    text = (tmp_path / "one").read_text()
    assert one.merge(tmp_path / "two") == one.merge(tmp_path / "one") == 0
    assert (tmp_path / "one").read_text() == text
    assert sorted(key for key, _, _ in CellStore(tmp_path / "one").items()) == list("abcde")


FOREIGN = (
    b'{"schema": "leadline.report/1"}\n', b"my notes\nof today\n", b"\0" * 64, b"\0\xff\n\1\n", b"[1, 2]\n", b"[" * 9000
)  # fmt: skip


@pytest.mark.parametrize("content", FOREIGN, ids=["report", "notes", "zeros", "bytes", "list", "nested"])
def test_another_kind_of_file_is_refused_and_left_as_it_is(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(SchemaError, match="not a file of"):
        CellStore(path)
    assert path.read_bytes() == content


def test_a_file_with_an_incomplete_first_line_is_accepted_and_its_cell_run_again(tmp_path):
    path = tmp_path / "cells.jsonl"
    CellStore(path).add("a", {}, 1)
    whole = path.read_bytes()
    for length in (1, 20, 30, len(whole) - 2):
        path.write_bytes(whole[:length])
        store = CellStore(path)
        assert (store.torn, len(store)) == (1, 0)


def test_a_cell_without_a_result_is_refused_by_its_key(tmp_path):
    path = tmp_path / "cells.jsonl"
    path.write_text('{"schema":"leadline.cells/1","key":"abc"}\n')
    with pytest.raises(SchemaError, match="abc"):
        CellStore(path)


def test_empty_lines_of_a_store_are_ignored(tmp_path):
    store = CellStore(tmp_path / "cells.jsonl")
    store.add("a", {"x": 1}, {"y": 2})
    store.path.write_text(store.path.read_text() + "\n\n")
    again = CellStore(store.path)
    assert len(again) == 1
    assert again.torn == 0


def test_a_store_in_a_folder_that_does_not_exist_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(InputError, match="its folder does not exist"):
        CellStore(tmp_path / "missing" / "cells.jsonl")
    with pytest.raises(InputError, match="not a file"):
        CellStore(tmp_path)
