"""What is exported is what was stored: same numbers, same gaps, in every format."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from array import array

import pytest

from leadline.errors import InputError
from leadline.monitor.runfile import Run, Writer, export
from leadline.monitor.runfile.export import layer_table, scalar_table, to_csv, to_jsonl, to_parquet
from leadline.records.run import RunInfo

STEPS = 7


@pytest.fixture
def run(tmp_path):
    with Writer(tmp_path / "a.leadline", RunInfo(model="Net")) as writer:
        writer.axis("blocks", ["a", "b"])
        for step in range(STEPS):
            scalars = {"loss": step + 0.1, "time": 5.0}
            vectors = {"dead": ("blocks", array("f", [step, math.inf, 0.1]))}
            writer.put(step, {"lr": math.nan} if step == 3 else scalars, vectors if step % 2 == 0 else None)
    with Run(tmp_path / "a.leadline") as found:
        yield found


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(export, "CHUNK_STEPS", 3)
    monkeypatch.setattr(export, "CHUNK_VALUES", 4)


def as_csv(table) -> list[dict[str, str]]:
    text = io.StringIO()
    to_csv(table, text)
    return [*csv.DictReader(io.StringIO(text.getvalue()))]


def as_jsonl(table) -> list[dict[str, object]]:
    text = io.StringIO()
    to_jsonl(table, text)
    return [json.loads(line, parse_constant=pytest.fail) for line in text.getvalue().splitlines()]


def as_parquet(table, path) -> list[dict[str, object]]:
    parquet = pytest.importorskip("pyarrow.parquet")
    to_parquet(table, path)
    return parquet.read_table(path).to_pylist()


def test_a_table_of_scalars_has_one_row_per_step_and_empty_gaps(run, tmp_path):
    rows = as_csv(scalar_table(run))
    assert [int(row["step"]) for row in rows] == list(range(STEPS))
    assert rows[0]["loss"] == "0.1"
    assert (rows[3]["loss"], rows[3]["lr"], rows[0]["lr"]) == ("", "NaN", "")
    lines = as_jsonl(scalar_table(run))
    assert lines[3] == {"step": 3, "time": lines[3]["time"], "lr": "NaN"}
    cells = as_parquet(scalar_table(run), tmp_path / "a.parquet")
    assert [row["loss"] for row in cells] == [None if step == 3 else step + 0.1 for step in range(STEPS)]
    assert math.isnan(cells[3]["lr"])
    assert cells[0]["lr"] is None


def test_a_metric_named_like_a_fixed_column_gets_its_own_column(run):
    assert as_csv(scalar_table(run))[0]["time (metric)"] == "5.0"


def test_a_table_of_layers_has_one_row_per_number(run, tmp_path):
    expected = [
        (step, "dead", "blocks", index, label, value)
        for step in range(0, STEPS, 2)
        for index, (label, value) in enumerate(
            [("a", float(step)), ("b", math.inf), (None, array("f", [0.1])[0])]
        )
    ]
    rows = as_parquet(layer_table(run), tmp_path / "a.parquet")
    assert [tuple(row.values()) for row in rows] == expected
    assert [row["value"] for row in as_csv(layer_table(run))][:3] == ["0.0", "inf", "0.100000001"]
    assert as_jsonl(layer_table(run))[1]["value"] == "Infinity"


def test_a_run_without_steps_is_an_empty_table(tmp_path):
    Writer(tmp_path / "a", RunInfo()).close()
    with Run(tmp_path / "a") as run:
        assert as_csv(scalar_table(run)) == as_jsonl(layer_table(run)) == []
        assert as_parquet(scalar_table(run), tmp_path / "a.parquet") == []


def test_without_pyarrow_the_extra_is_named(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install '\.\[parquet\]'"):
        to_parquet(scalar_table(run), tmp_path / "a.parquet")
