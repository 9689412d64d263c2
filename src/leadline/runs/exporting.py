"""The formats a table of a run can be written in: CSV, lines of JSON, Parquet."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from leadline.errors import InputError
from leadline.records import spell
from leadline.runs.tables import Cell, Kind, Table
from leadline.words import cell

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
