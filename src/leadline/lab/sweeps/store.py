"""A file of finished cells, one line of JSON each, which the next run reads and other files can be merged into."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from leadline.errors import InputError, SchemaError
from leadline.lab.sweeps.cells import Settings
from leadline.records.codec import read_text, spell

SCHEMA = "leadline.cells/1"
LINE_START = f'{{"schema":"{SCHEMA}"'
"""The start of every line. It identifies a file whose first line is incomplete."""


class CellStore:
    """Results by key. With a path, every result is written to the file as soon as it is added.

    Each line is one write, so a killed run leaves at most one incomplete line, at the end. It is skipped when the file
    is read, and its cell is run again. The first result of a key stays, so reading or merging a file twice changes
    nothing. A file of another kind is refused and never written to.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.torn = 0
        """How many lines were incomplete."""
        self._cells: dict[str, tuple[Settings, Any]] = {}
        if path is not None and _file_exists(path):
            for key, settings, result in self._read(path):
                self._cells.setdefault(key, (settings, result))

    def __contains__(self, key: str) -> bool:
        return key in self._cells

    def __getitem__(self, key: str) -> Any:
        return self._cells[key][1]

    def get(self, key: str) -> Any:
        """Return the result, or None."""
        cell = self._cells.get(key)
        return None if cell is None else cell[1]

    def __len__(self) -> int:
        return len(self._cells)

    def items(self) -> Iterator[tuple[str, Settings, Any]]:
        """Yield the key, the settings and the result of each cell."""
        for key, (settings, result) in self._cells.items():
            yield key, settings, result

    def add(self, key: str, settings: Settings, result: Any) -> None:
        """Add a result unless the key already has one."""
        if key in self._cells:
            return
        row = spell({"schema": SCHEMA, "key": key, "settings": dict(settings), "result": result})
        text = json.dumps(row, allow_nan=False, separators=(",", ":"))
        if self.path is not None:
            _append(self.path, text)
        stored = json.loads(text)  # the types that a later run will read
        self._cells[key] = (stored["settings"], stored["result"])

    def merge(self, other: Path) -> int:
        """Add the cells of another file that are missing here. Return how many there were."""
        before = len(self)
        for key, settings, result in self._read(other):
            self.add(key, settings, result)
        return len(self) - before

    def _read(self, path: Path) -> Iterator[tuple[str, Settings, Any]]:
        has_valid_line = False
        text = read_text(path, "a file of finished cells", errors="replace")
        for line in filter(str.strip, text.splitlines()):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                if not has_valid_line and not (line.startswith(LINE_START) or LINE_START.startswith(line)):
                    raise _wrong_file_kind(path) from None
                self.torn += 1
                continue
            has_valid_line = True
            yield _checked(row, path)


def _checked(row: Any, path: Path) -> tuple[str, Settings, Any]:
    """Return the cell of a row, or raise if the row shows that this is another kind of file."""
    if not isinstance(row, Mapping) or row.get("schema") != SCHEMA or not isinstance(row.get("key"), str):
        raise _wrong_file_kind(path)
    if not isinstance(row.get("settings"), Mapping) or "result" not in row:
        raise SchemaError(f"{path} contains a cell without settings or result: {str(row['key'])[:40]!r}")
    return row["key"], row["settings"], row["result"]


def _wrong_file_kind(path: Path) -> SchemaError:
    return SchemaError(f"{path} is not a file of {SCHEMA!r}; give the name of another file")


def _file_exists(path: Path) -> bool:
    """Return whether the file exists. Raise now, not after the first cell, if it cannot be written."""
    if path.is_file():
        return True
    if path.exists() or not path.absolute().parent.is_dir():
        raise _unusable(path, "not a file, or its folder does not exist")
    return False


def _unusable(path: Path, why: str) -> InputError:
    return InputError(
        expected="an existing or new file for finished cells",
        got=f"{str(path)!r}: {why}",
        fix="give the name of another file",
    )


def _append(path: Path, text: str) -> None:
    """Append a line in one write, so that two runs can share a file. An incomplete line before it is ended first."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from None
    try:
        end = os.lseek(file, 0, os.SEEK_END)
        torn = end > 0 and os.pread(file, 1, end - 1) != b"\n"
        os.write(file, (("\n" if torn else "") + text + "\n").encode())
    finally:
        os.close(file)
