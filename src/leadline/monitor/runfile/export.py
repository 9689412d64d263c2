"""A run as tables, written as CSV, JSON lines or Parquet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from leadline.monitor.runfile.read import Run

import csv
import json
import math
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from leadline.errors import InputError
from leadline.records import spell
from leadline.text import cell

PIECE_STEPS = 1000  # ours: with 20 numbers a step, 20,000 cells at a time
PIECE_VALUES = 100_000  # ours: of vectors, so many numbers at a time

Kind = Literal["integer", "real", "single", "word"]
Cell = int | float | str | None
Piece = list[Sequence[Cell]]
"""One sequence a column, all of the same length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Named columns, and their content piece by piece. A cell that was not measured is None."""

    columns: dict[str, Kind]
    pieces: Iterator[Piece]


def scalar_table(run: Run) -> Table:
    """A row a step: the step, when it was written (seconds since 1970), and every number of the whole model."""
    names = run.scalar_names
    columns: dict[str, Kind] = {"step": "integer", "time": "real"}
    columns.update({_column(name): "real" for name in names})
    return Table(columns=columns, pieces=_scalar_pieces(run, names))


def layer_table(run: Run) -> Table:
    """A row a number of a vector: step, metric, axis, index on the axis, its label, value."""
    columns: dict[str, Kind] = {"step": "integer", "metric": "word", "axis": "word", "index": "integer"}
    columns.update({"layer": "word", "value": "single"})
    return Table(columns=columns, pieces=_layer_pieces(run))


def _column(name: str) -> str:
    return f"{name} (metric)" if name in ("step", "time") else name


def _scalar_pieces(run: Run, names: Sequence[str]) -> Iterator[Piece]:
    times = run.times()
    steps = [*times]
    for start in range(0, len(steps), PIECE_STEPS):
        piece = steps[start : start + PIECE_STEPS]
        columns: Piece = [piece, [times[step] for step in piece]]
        for name in names:
            found = dict(zip(*run.scalars(name, piece[0], piece[-1] + 1), strict=True))
            columns.append([found.get(step) for step in piece])
        yield columns


def _layer_pieces(run: Run) -> Iterator[Piece]:
    axes, steps = run.axes, run.steps
    for metric, axis in run.vector_axes.items():
        labels = axes.get(axis, ())
        length = max(1, PIECE_VALUES // max(1, len(labels)))
        for start in range(0, len(steps), length):
            piece = steps[start : start + length]
            yield from _vectors(run, metric, axis, labels, (piece[0], piece[-1] + 1))


def _vectors(
    run: Run, metric: str, axis: str, labels: Sequence[str], between: tuple[int, int]
) -> Iterator[Piece]:
    columns: list[list[Cell]] = [[] for _ in range(6)]
    for step, values in zip(*run.vectors(metric, *between), strict=True):
        size = len(values)
        named = [*labels[:size], *([None] * (size - len(labels)))]
        cells: list[Iterable[Cell]] = [
            [step] * size,
            [metric] * size,
            [axis] * size,
            range(size),
            named,
            values,
        ]
        for column, content in zip(columns, cells, strict=True):
            column.extend(content)
    if columns[0]:
        yield [*columns]


# The formats a table of a run can be written in: CSV, lines of JSON, Parquet.

Row = tuple[Cell, ...]


def to_csv(table: Table, file: TextIO) -> None:
    """A header and a line a row. An empty cell was not measured; NaN was measured, and was NaN.

    Names are written so that neither a terminal nor a spreadsheet obeys them.
    """
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(cell, table.columns))
    for row in _rows(table):
        writer.writerow([_cell(value) for value in row])


def to_jsonl(table: Table, file: TextIO) -> None:
    """An object a row, without what was not measured. Strict JSON: NaN and infinities are names."""
    names = [*table.columns]
    for row in _rows(table):
        filled = {name: spell(value) for name, value in zip(names, row, strict=True) if value is not None}
        file.write(json.dumps(filled, allow_nan=False) + "\n")


TEXT_FORMATS: Mapping[str, Callable[[Table, TextIO], None]] = {"csv": to_csv, "jsonl": to_jsonl}
FORMATS = (*TEXT_FORMATS, "parquet")


def to_parquet(table: Table, path: Path) -> None:
    """A Parquet file; null was not measured, NaN was NaN."""
    pa, pq = _pyarrow()
    schema = pa.schema([(name, _arrow_type(pa, kind)) for name, kind in table.columns.items()])
    with pq.ParquetWriter(path, schema) as writer:
        for piece in table.pieces:
            arrays = [pa.array(column, field.type) for column, field in zip(piece, schema, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _pyarrow() -> tuple[Any, Any]:
    try:
        pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise InputError(
            expected="pyarrow, which writes Parquet",
            got="it is not installed",
            fix='pip install "leadline[parquet]", or write csv or jsonl',
        ) from None
    return pa, pq


def _arrow_type(pa: Any, kind: Kind) -> Any:
    words = pa.dictionary(pa.int32(), pa.string())
    return {"integer": pa.int64(), "real": pa.float64(), "single": pa.float32(), "word": words}[kind]


def _rows(table: Table) -> Iterator[Row]:
    """Numbers that were stored as float32 with the nine digits that tell any two of them apart."""
    singles = [place for place, kind in enumerate(table.columns.values()) if kind == "single"]
    for piece in table.pieces:
        for place in singles:
            piece[place] = [None if value is None else float(f"{value:.9g}") for value in piece[place]]
        yield from zip(*piece, strict=True)


def _cell(value: Cell) -> Cell:
    if isinstance(value, str):
        return cell(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else str(value)
    return value
