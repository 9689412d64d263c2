"""One connection of the writer: opening a file for a run, and storing a batch in one transaction."""

from __future__ import annotations

import json
import os
import sqlite3
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from leadline.errors import InputError
from leadline.records.run import RunInfo, note_from_json, note_to_json
from leadline.runs.owner import Owner, is_alive, myself, read_owner, write_owner
from leadline.runs.pending import Note, Put
from leadline.runs.schema import TABLES, connect, recognise


class TakenOverError(Exception):
    """Another process writes this file now."""


class Store:
    """A run file that this process writes."""

    def __init__(self, connection: sqlite3.Connection, path: Path, info: RunInfo, owner: Owner) -> None:
        self.path, self.info = path, info
        self.resumed = False
        self.last_step: int | None = None
        self._connection, self._owner = connection, owner
        self._inode = path.stat().st_ino
        self._metrics: dict[tuple[str, str], int] = {}
        self._axes: dict[str, int] = {}
        self._written: set[int] = set()
        self._load()

    def _load(self) -> None:
        run = self._connection.execute
        self._metrics = {(name, axis): key for key, name, axis in run("SELECT id, name, axis FROM metric")}
        (self.last_step,) = run("SELECT max(step) FROM step").fetchone()
        (entry,) = run("SELECT max(seq) FROM entry").fetchone()
        (note,) = run("SELECT max(seq) FROM note").fetchone()
        self._seq = max(entry or 0, note or 0)

    def save(self, puts: Sequence[Put], notes: Sequence[Note], axes: Mapping[str, tuple[str, ...]]) -> None:
        """All or nothing. Without puts and notes this is a sign of life."""
        self._check_place()
        self._connection.execute("BEGIN IMMEDIATE")
        seq, metrics = self._seq, dict(self._metrics)
        try:
            self._check_owner()
            write_owner(self._connection, self._owner)
            self._save_axes(axes)
            for put in puts:
                self._save_put(put)
            for note in notes:
                self._seq += 1
                self._connection.execute(
                    "INSERT INTO note VALUES (?, ?, ?, ?)", (self._seq, note.kind, note.step, note.body)
                )
            self._connection.execute("COMMIT")
        except BaseException:
            self._seq, self._metrics = seq, metrics
            self._roll_back()
            raise

    def _save_axes(self, axes: Mapping[str, tuple[str, ...]]) -> None:
        for name, labels in axes.items():
            self._connection.execute("INSERT OR REPLACE INTO axis VALUES (?, ?)", (name, json.dumps(labels)))

    def _save_put(self, put: Put) -> None:
        self._connection.execute("INSERT OR REPLACE INTO step VALUES (?, ?)", (put.step, put.time))
        rows = []
        for name, value in put.scalars.items():
            self._seq += 1
            rows.append((self._seq, self._metric(name, ""), put.step, value))
        for name, (axis, blob) in put.vectors.items():
            self._seq += 1
            rows.append((self._seq, self._metric(name, axis), put.step, blob))
        self._connection.executemany("INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?)", rows)

    def _metric(self, name: str, axis: str) -> int:
        if (name, axis) not in self._metrics:
            key = self._connection.execute(
                "INSERT INTO metric (name, axis) VALUES (?, ?)", (name, axis)
            ).lastrowid
            assert key is not None  # an INSERT has one
            self._metrics[name, axis] = key
        return self._metrics[name, axis]

    def _check_place(self) -> None:
        """SQLite goes on writing to a file that was deleted; nobody would ever read that."""
        if os.stat(self.path).st_ino != self._inode:
            raise FileNotFoundError(f"{self.path} was replaced by another file")

    def _check_owner(self) -> None:
        owner = read_owner(self._connection)
        if owner is None or owner.token != self._owner.token:
            raise TakenOverError

    def _roll_back(self) -> None:
        try:
            self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # SQLite has rolled back by itself

    def release(self) -> None:
        """Let others write; fold the journal into the file, so that it is one file and can be read anywhere."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._check_owner()
        self._connection.execute("DELETE FROM run WHERE key = 'writer'")
        self._connection.execute("COMMIT")
        self._connection.execute("PRAGMA journal_mode = DELETE")

    def close(self) -> None:
        self._connection.close()


def open_store(path: Path, info: RunInfo, *, resume: bool) -> Store:
    """The file, made if it is not there. Raises InputError or SchemaError if it must not be written by this run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = connect(path, mode="rwc")
    try:
        found = recognise(connection, path)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        stored = _existing(connection, path, info, resume=resume) if found else _new(connection, info)
        owner = myself()
        write_owner(connection, owner)
        connection.execute("COMMIT")
        store = Store(connection, path, stored, owner)
        store.resumed = found
        return store
    except BaseException:
        connection.close()
        raise


def _new(connection: sqlite3.Connection, info: RunInfo) -> RunInfo:
    from leadline import __version__

    for statement in TABLES.strip().split(";\n"):
        connection.execute(statement)
    info = replace(
        info, id=info.id or uuid.uuid4().hex, started=info.started or time.time(), leadline=__version__
    )
    connection.execute("INSERT INTO run VALUES ('info', ?)", (note_to_json(info),))
    return info


def _existing(connection: sqlite3.Connection, path: Path, info: RunInfo, *, resume: bool) -> RunInfo:
    owner = read_owner(connection)
    if owner is not None and is_alive(owner):
        raise InputError(
            expected="a run file that nobody else is writing",
            got=f"{path}, written by process {owner.pid} on {owner.host}",
            fix="name another file, or end that process",
        )
    (text,) = connection.execute("SELECT value FROM run WHERE key = 'info'").fetchone()
    stored = note_from_json(text, RunInfo)
    if not resume:
        raise InputError(
            expected="a new file",
            got=f"{path}, which holds a run of {stored.model}",
            fix="name another file, or let the run resume",
        )
    same = (stored.model, stored.parameters) == (info.model, info.parameters)
    if not same or info.id not in ("", stored.id):
        raise InputError(
            expected=f"a file of this run ({info.model}, {info.parameters:,} parameters), or a new one",
            got=f"{path}, which holds another run ({stored.model}, {stored.parameters:,} parameters)",
            fix="give each run its own file",
        )
    return stored
