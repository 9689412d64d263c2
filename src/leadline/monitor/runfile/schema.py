"""The run file: SQLite tables, and how a file is opened, recognised and refused.

    step     one row a step: when it was written
    entry    one number (scalar) or one float32 BLOB over all labels of an axis (vector) for each step and metric
    note     alerts, events and reports, as JSON
    axis     names of the layers or parameters that a vector runs over
    metric   names of the scalars (without axis) and vectors
    run      the RunInfo and who is writing, as JSON

`seq` counts everything written, in order, over `entry` and `note` together: a reader that remembers the last one it
saw asks for what is larger. What is written again gets a new one. A missing number is a missing row; SQLite turns NaN
into NULL, so a NULL is a NaN.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from leadline.errors import InputError, SchemaError
from leadline.records.run import RunInfo, note_from_json

APPLICATION_ID = 0x4C45414C  # "LEAL", in the file's header: tells a run file from any other SQLite file
VERSION = 1
BUSY_SECONDS = 5.0  # ours: how long one statement waits for another process to let go of the file

NEEDED = frozenset({"run", "axis", "metric", "step", "entry", "note"})
TABLES = f"""
CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE axis (name TEXT PRIMARY KEY, labels TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE metric (id INTEGER PRIMARY KEY, name TEXT NOT NULL, axis TEXT NOT NULL, UNIQUE (name, axis));
CREATE TABLE step (step INTEGER PRIMARY KEY, time REAL NOT NULL);
CREATE TABLE entry (seq INTEGER PRIMARY KEY, metric INTEGER NOT NULL, step INTEGER NOT NULL, value);
CREATE UNIQUE INDEX entry_place ON entry (metric, step);
CREATE TABLE note (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, step INTEGER NOT NULL, body TEXT NOT NULL);
CREATE INDEX note_place ON note (kind, step);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
"""

LARGEST_CELL = (
    64 * 2**20
)  # bytes of one number, vector, name or report; ours: a report of 1000 layers has 2 MB
CAUTION = ("trusted_schema = OFF", "cell_size_check = ON")  # cited: SQLite's advice for files from strangers

LAST_SEQ = "SELECT max(ifnull((SELECT max(seq) FROM entry), 0), ifnull((SELECT max(seq) FROM note), 0))"


def connect(path: Path, *, mode: str, options: str = "") -> sqlite3.Connection:
    """A connection in manual transactions. `mode` is SQLite's: ro, rw or rwc.

    The file is never opened with `open`: to close any handle of a file drops all locks that this process has on it,
    those of a writer included.
    """
    if os.path.exists(path) and not (
        os.path.isfile(path) or os.path.isdir(path)
    ):  # a pipe would be waited for
        raise InputError(
            expected="a run file",
            got=f"{str(path)!r}, which is a pipe or a device",
            fix="name a file on a disk",
        )
    connection = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode={mode}{options}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.text_factory = _decoded
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_CELL)
    for setting in CAUTION:
        connection.execute(f"PRAGMA {setting}")
    return connection


def _decoded(text: bytes) -> str:
    """Text of a damaged file is no reason to raise: whoever reads it sees that it is wrong."""
    return text.decode(errors="replace")


def recognise(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file holds a run; False if it is empty. Raises SchemaError if it holds anything else."""
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        found = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # SQLite's own words may quote damaged bytes
        if is_about_content(error):
            raise explained(error, path) from None
        raise
    if not found and application == version == 0:
        return False
    if application != APPLICATION_ID:
        raise SchemaError(f"{path} is a SQLite file, but not a run of leadline")
    if version > VERSION:
        raise SchemaError(
            f"{path} is a run file of version {version}; this version of leadline reads {VERSION}. Upgrade leadline."
        )
    _refuse_programs(found, path)
    if missing := NEEDED - {name for kind, name, _ in found if kind == "table"}:
        raise SchemaError(f"{path} is damaged: it has no table {sorted(missing)[0]!r}")
    return True


def _refuse_programs(found: Iterable[tuple[str, str, str | None]], path: Path) -> None:
    """A run holds tables and their indices; what computes something when it is read or written is not ours."""
    for kind, name, sql in found:
        if kind not in ("table", "index") or "VIRTUAL" in str(sql).upper().split("(")[0]:
            raise SchemaError(f"{path} is not a run as leadline writes it: it has a {kind} {name!r}")


def read_info(connection: sqlite3.Connection, path: Path) -> RunInfo:
    row = connection.execute("SELECT value FROM run WHERE key = 'info'").fetchone()
    if row is None:
        raise SchemaError(f"{path} is damaged: it does not say which run it holds")
    return note_from_json(row[0], RunInfo)


def is_about_content(error: Exception) -> bool:
    """What the file holds is wrong; otherwise the file cannot be reached, locked or written just now."""
    return not isinstance(error, sqlite3.OperationalError) or "no such" in str(error)


def explained(error: Exception, path: Path) -> Exception:
    """A SchemaError if the file's content is at fault, an InputError if the file cannot be reached."""
    said = str(error)
    if "not a database" in said:
        return SchemaError(f"{path} is not a run file: it is no SQLite database")
    if not is_about_content(error):
        return InputError(
            expected=f"a run file that can be read: {path}",
            got=_why(path) or said,
            fix="check the path and its permissions",
        )
    return SchemaError(f"{path} is damaged ({said}); was it copied while it was written, or cut short?")


def _why(path: Path) -> str:
    try:
        path.stat()
    except OSError as error:
        return "no such file" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
    if path.is_dir():
        return "a directory"
    return "" if os.access(path, os.R_OK) else "no permission to read it"
