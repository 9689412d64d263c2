"""The schema of a run file: its SQLite tables, and how a file is opened, recognized and refused.

    step     one row per step: when it was written
    entry    one number (scalar) or one float32 BLOB over all labels of an axis (vector) per step and metric
    note     alerts, events and reports, as JSON
    axis     names of the layers or parameters that a vector runs over
    metric   names of the scalars (without axis) and vectors
    run      the RunInfo and the writing process, as JSON

`seq` numbers everything in the order of writing, over `entry` and `note` together: a reader remembers the last one it
read and asks for larger ones. A row that is written again gets a new `seq`. A missing number is a missing row; SQLite
turns NaN into NULL, so a NULL is a NaN.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from leadline.errors import InputError, SchemaError
from leadline.records.run import RunInfo, note_from_json

# Derived: "LEAL" in ASCII; in the file's header, it distinguishes a run file from other SQLite files.
APPLICATION_ID = 0x4C45414C
# Derived: counts the incompatible changes of the tables.
VERSION = 1
# Heuristic: seconds that one statement waits for another process to release the file; SQLite transactions are shorter.
MAX_LOCK_SECONDS = 5.0

REQUIRED_TABLES = frozenset({"run", "axis", "metric", "step", "entry", "note"})
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

# Heuristic: bytes of one number, vector, name or report; a report of 1000 layers has 2 MB.
MAX_CELL_BYTES = 64 * 2**20
# Cited: SQLite's advice for database files from untrusted sources.
SAFETY_PRAGMAS = ("trusted_schema = OFF", "cell_size_check = ON")

LAST_SEQ = "SELECT max(ifnull((SELECT max(seq) FROM entry), 0), ifnull((SELECT max(seq) FROM note), 0))"


def connect(path: Path, *, mode: str, options: str = "") -> sqlite3.Connection:
    """Return a connection with manual transactions. `mode` is SQLite's: ro, rw or rwc.

    The file is never opened with `open`, because closing any handle of a file drops all locks that this process holds
    on it, including those of a writer.
    """
    is_regular = os.path.isfile(path) or os.path.isdir(path)
    if os.path.exists(path) and not is_regular:  # opening a pipe would block
        raise InputError(
            expected="a run file",
            got=f"{str(path)!r}, which is a pipe or a device",
            fix="name a file on a disk",
        )
    connection = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode={mode}{options}",
        uri=True,
        timeout=MAX_LOCK_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.text_factory = _decode
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_CELL_BYTES)
    for setting in SAFETY_PRAGMAS:
        connection.execute(f"PRAGMA {setting}")
    return connection


def _decode(text: bytes) -> str:
    """Decode text of a possibly damaged file without raising; the reader sees the replacement characters."""
    return text.decode(errors="replace")


def holds_run(connection: sqlite3.Connection, path: Path) -> bool:
    """Return True if the file holds a run, False if it is empty. Raise SchemaError if it holds anything else."""
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        objects = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # SQLite's message may quote damaged bytes
        if is_content_error(error):
            raise explain_error(error, path) from None
        raise
    if not objects and application == version == 0:
        return False
    if application != APPLICATION_ID:
        raise SchemaError(f"{path} is a SQLite file, but not a run file of leadline")
    if version > VERSION:
        raise SchemaError(
            f"{path} is a run file of version {version}, but this leadline reads version {VERSION}. Upgrade leadline."
        )
    _refuse_programs(objects, path)
    if missing := REQUIRED_TABLES - {name for kind, name, _ in objects if kind == "table"}:
        raise SchemaError(f"{path} is damaged: it has no table {sorted(missing)[0]!r}")
    return True


def _refuse_programs(objects: Iterable[tuple[str, str, str | None]], path: Path) -> None:
    """Raise SchemaError for anything but tables and indices: views and triggers compute when they are read."""
    for kind, name, sql in objects:
        if kind not in ("table", "index") or "VIRTUAL" in str(sql).upper().split("(")[0]:
            raise SchemaError(f"{path} is not a run file as leadline writes it: it has a {kind} {name!r}")


def read_info(connection: sqlite3.Connection, path: Path) -> RunInfo:
    row = connection.execute("SELECT value FROM run WHERE key = 'info'").fetchone()
    if row is None:
        raise SchemaError(f"{path} is damaged: it has no information about its run")
    return note_from_json(row[0], RunInfo)


def is_content_error(error: Exception) -> bool:
    """True if the content is at fault; otherwise the file cannot be reached, locked or written at the moment."""
    return not isinstance(error, sqlite3.OperationalError) or "no such" in str(error)


def explain_error(error: Exception, path: Path) -> Exception:
    """Return a SchemaError if the file's content is at fault, an InputError if the file cannot be reached."""
    message = str(error)
    if "not a database" in message:
        return SchemaError(f"{path} is not a run file: it is not a SQLite database")
    if not is_content_error(error):
        return InputError(
            expected=f"a run file that can be read: {path}",
            got=_access_problem(path) or message,
            fix="check the path and its permissions",
        )
    return SchemaError(
        f"{path} is damaged ({message}); it may have been copied while it was written, or truncated"
    )


def _access_problem(path: Path) -> str:
    try:
        path.stat()
    except OSError as error:
        return "no such file" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
    if path.is_dir():
        return "a directory"
    return "" if os.access(path, os.R_OK) else "no permission to read it"
