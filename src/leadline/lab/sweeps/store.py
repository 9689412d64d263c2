"""Finished cells, a line of JSON each: written as they end, read again by the next run, merged with those of others."""

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
"""Of every line: what is torn before any whole line is known by it."""


class CellStore:
    """Results by key. With a path, every result is in the file before the next cell ends.

    A line is written at once, so a killed run leaves at most one torn line, at the end; it is skipped when read, and
    the cell is run again. The first result of a key stays: reading or merging a file twice changes nothing. A file of
    another kind is refused, and never written to.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.torn = 0
        """Lines that could not be read."""
        self._cells: dict[str, tuple[Settings, Any]] = {}
        if path is not None and _is_there(path):
            for key, settings, result in self._read(path):
                self._cells.setdefault(key, (settings, result))

    def __contains__(self, key: str) -> bool:
        return key in self._cells

    def __getitem__(self, key: str) -> Any:
        return self._cells[key][1]

    def get(self, key: str) -> Any:
        """The result, or None."""
        found = self._cells.get(key)
        return None if found is None else found[1]

    def __len__(self) -> int:
        return len(self._cells)

    def items(self) -> Iterator[tuple[str, Settings, Any]]:
        """Key, settings and result of each cell."""
        for key, (settings, result) in self._cells.items():
            yield key, settings, result

    def add(self, key: str, settings: Settings, result: Any) -> None:
        """Keep a result, unless there is one already."""
        if key in self._cells:
            return
        row = spell({"schema": SCHEMA, "key": key, "settings": dict(settings), "result": result})
        text = json.dumps(row, allow_nan=False, separators=(",", ":"))
        if self.path is not None:
            _append(self.path, text)
        back = json.loads(text)  # what a later run will read: the same types, whether stored or not
        self._cells[key] = (back["settings"], back["result"])

    def merge(self, other: Path) -> int:
        """Take over the cells of another file that are not here yet; how many those were."""
        before = len(self)
        for key, settings, result in self._read(other):
            self.add(key, settings, result)
        return len(self) - before

    def _read(self, path: Path) -> Iterator[tuple[str, Settings, Any]]:
        begun = False
        text = read_text(path, "a file of finished cells", errors="replace")
        for line in filter(str.strip, text.splitlines()):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                if not begun and not (line.startswith(LINE_START) or LINE_START.startswith(line)):
                    raise _of_another_kind(path) from None
                self.torn += 1
                continue
            begun = True
            yield _checked(row, path)


def _checked(row: Any, path: Path) -> tuple[str, Settings, Any]:
    """A line that is whole but of another kind means another file: better said than overwritten."""
    if not isinstance(row, Mapping) or row.get("schema") != SCHEMA or not isinstance(row.get("key"), str):
        raise _of_another_kind(path)
    if not isinstance(row.get("settings"), Mapping) or "result" not in row:
        raise SchemaError(f"{path} has a cell without settings or result: {str(row['key'])[:40]!r}")
    return row["key"], row["settings"], row["result"]


def _of_another_kind(path: Path) -> SchemaError:
    return SchemaError(f"{path} holds something else than {SCHEMA!r}; is this another kind of file?")


def _is_there(path: Path) -> bool:
    """Whether the file is there. One that could not be written is refused now, not behind the first cell."""
    if path.is_file():
        return True
    if path.exists() or not path.absolute().parent.is_dir():
        raise _unusable(path, "no file, or in no folder")
    return False


def _unusable(path: Path, why: str) -> InputError:
    return InputError(
        expected="a file for finished cells, or the name of a new one",
        got=f"{str(path)!r}: {why}",
        fix="name another",
    )


def _append(path: Path, text: str) -> None:
    """One write a line: two runs that share a file do not mix theirs. A torn line before it is closed first."""
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
