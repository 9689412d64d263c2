"""Exporting a run as tables in CSV, JSON lines or Parquet."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from leadline.errors import InputError, install_extra
from leadline.records import spell
from leadline.text import cell

if TYPE_CHECKING:
    from leadline.monitor.runfile.read import Run

# Heuristic: steps per chunk; with 20 numbers per step these are 20,000 cells.
CHUNK_STEPS = 1000
# Heuristic: numbers of vectors per chunk; a few megabytes as Python objects.
CHUNK_VALUES = 100_000

Kind = Literal["integer", "real", "single", "word"]
Cell = int | float | str | None
Chunk = list[Sequence[Cell]]
"""One sequence per column, all of the same length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTable:
    """Named columns and their content in chunks. A cell that was not measured is None."""

    columns: dict[str, Kind]
    chunks: Iterator[Chunk]


def scalar_table(run: Run) -> RunTable:
    """Return one row per step: the step, when it was written (seconds since 1970), and every scalar."""
    names = run.scalar_names
    columns: dict[str, Kind] = {"step": "integer", "time": "real"}
    columns.update({_column(name): "real" for name in names})
    return RunTable(columns=columns, chunks=_scalar_chunks(run, names))


def layer_table(run: Run) -> RunTable:
    """Return one row per number of a vector: step, metric, axis, index on the axis, label, value."""
    columns: dict[str, Kind] = {"step": "integer", "metric": "word", "axis": "word", "index": "integer"}
    columns.update({"layer": "word", "value": "single"})
    return RunTable(columns=columns, chunks=_layer_chunks(run))


def _column(name: str) -> str:
    return f"{name} (metric)" if name in ("step", "time") else name


def _scalar_chunks(run: Run, names: Sequence[str]) -> Iterator[Chunk]:
    times = run.times()
    steps = [*times]
    for start in range(0, len(steps), CHUNK_STEPS):
        chunk = steps[start : start + CHUNK_STEPS]
        columns: Chunk = [chunk, [times[step] for step in chunk]]
        for name in names:
            values = dict(zip(*run.scalars(name, chunk[0], chunk[-1] + 1), strict=True))
            columns.append([values.get(step) for step in chunk])
        yield columns


def _layer_chunks(run: Run) -> Iterator[Chunk]:
    axes, steps = run.axes, run.steps
    for metric, axis in run.vector_axes.items():
        labels = axes.get(axis, ())
        length = max(1, CHUNK_VALUES // max(1, len(labels)))
        for start in range(0, len(steps), length):
            chunk = steps[start : start + length]
            yield from _vector_chunk(run, metric, axis, labels, (chunk[0], chunk[-1] + 1))


def _vector_chunk(
    run: Run, metric: str, axis: str, labels: Sequence[str], steps: tuple[int, int]
) -> Iterator[Chunk]:
    columns: list[list[Cell]] = [[] for _ in range(6)]
    for step, values in zip(*run.vectors(metric, *steps), strict=True):
        size = len(values)
        names = [*labels[:size], *([None] * (size - len(labels)))]
        cells: list[Iterable[Cell]] = [
            [step] * size,
            [metric] * size,
            [axis] * size,
            range(size),
            names,
            values,
        ]
        for column, content in zip(columns, cells, strict=True):
            column.extend(content)
    if columns[0]:
        yield [*columns]


# The formats.

Row = tuple[Cell, ...]


def to_csv(table: RunTable, file: TextIO) -> None:
    """Write a header and one line per row. An empty cell was not measured; NaN was measured and was NaN.

    Names are escaped so that neither a terminal nor a spreadsheet executes them.
    """
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(cell, table.columns))
    for row in _rows(table):
        writer.writerow([_cell(value) for value in row])


def to_jsonl(table: RunTable, file: TextIO) -> None:
    """Write one object per row, without what was not measured. NaN and infinities are strings, as JSON requires."""
    names = [*table.columns]
    for row in _rows(table):
        known = {name: spell(value) for name, value in zip(names, row, strict=True) if value is not None}
        file.write(json.dumps(known, allow_nan=False) + "\n")


TEXT_FORMATS: Mapping[str, Callable[[RunTable, TextIO], None]] = {"csv": to_csv, "jsonl": to_jsonl}
FORMATS = (*TEXT_FORMATS, "parquet")


def to_parquet(table: RunTable, path: Path) -> None:
    """Write a Parquet file; null was not measured, NaN was measured and was NaN."""
    pa, pq = _pyarrow()
    schema = pa.schema([(name, _arrow_type(pa, kind)) for name, kind in table.columns.items()])
    with pq.ParquetWriter(path, schema) as writer:
        for chunk in table.chunks:
            arrays = [pa.array(column, field.type) for column, field in zip(chunk, schema, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _pyarrow() -> tuple[Any, Any]:
    try:
        pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise InputError(
            expected="pyarrow, which writes Parquet",
            got="it is not installed",
            fix=f"{install_extra('parquet')}, or export csv or jsonl",
        ) from None
    return pa, pq


def _arrow_type(pa: Any, kind: Kind) -> Any:
    words = pa.dictionary(pa.int32(), pa.string())
    return {"integer": pa.int64(), "real": pa.float64(), "single": pa.float32(), "word": words}[kind]


def _rows(table: RunTable) -> Iterator[Row]:
    """Yield the rows; float32 numbers have nine digits, which distinguish any two of them."""
    singles = [index for index, kind in enumerate(table.columns.values()) if kind == "single"]
    for chunk in table.chunks:
        for index in singles:
            chunk[index] = [None if value is None else float(f"{value:.9g}") for value in chunk[index]]
        yield from zip(*chunk, strict=True)


def _cell(value: Cell) -> Cell:
    if isinstance(value, str):
        return cell(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else str(value)
    return value
