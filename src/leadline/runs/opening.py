"""How a writer opens a file: made if it is new, resumed if it holds this run, refused otherwise."""

from __future__ import annotations

import sqlite3
import time
import uuid
from pathlib import Path

from msgspec.structs import replace

from leadline.errors import InputError
from leadline.records.run import RunInfo, note_to_json
from leadline.runs.filesystem import network_kind
from leadline.runs.owner import PATIENCE_SECONDS, Owner, is_alive, read_owner, write_owner
from leadline.runs.schema import TABLES, connect, read_info, recognise
from leadline.runs.storing import Store

POLL_SECONDS = 0.25  # ours: how often a writer on another machine is looked at


def open_store(path: Path, info: RunInfo, owner: Owner, *, resume: bool) -> Store:
    """The file, ready to be written by `owner`.

    Raises InputError or SchemaError if this run must not write it; OSError or sqlite3.OperationalError if it cannot
    be written just now.
    """
    if path.is_dir():
        raise InputError(expected="a file to write", got=f"the directory {path}", fix="name a file in it")
    connection = connect(path, mode="rwc")
    try:
        dead = None
        if recognise(connection, path):
            dead = _dead_owner(connection)
            _existing(connection, path, info, resume=resume)  # before anything in the file is touched
        without_log = _start_log(connection, path)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        if recognise(connection, path):  # asked again: somebody may have made it since
            _refuse_taken(read_owner(connection), path, dead, owner)
            info = _existing(connection, path, info, resume=resume)
        else:
            info = _new(connection, info)
        write_owner(connection, owner)
        connection.execute("COMMIT")
        return Store(connection, path, info, owner, without_log=without_log)
    except BaseException:
        connection.close()
        raise


def _dead_owner(connection: sqlite3.Connection) -> Owner | None:
    """A writer on another machine that stays silent for `PATIENCE_SECONDS`. No clock but our own is asked."""
    owner = now = read_owner(connection)
    if owner is None or is_alive(owner) is not None:
        return None
    end = time.monotonic() + PATIENCE_SECONDS
    while now == owner and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
        now = read_owner(connection)
    return owner if now == owner else None


def _refuse_taken(owner: Owner | None, path: Path, dead: Owner | None, me: Owner) -> None:
    if owner is None or owner == dead or owner.token == me.token or is_alive(owner) is False:
        return
    mine = (owner.host, owner.pid) == (me.host, me.pid)
    whom = "this very process" if mine else f"process {owner.pid} on {owner.host}"
    raise InputError(
        expected="a run file that nobody else is writing",
        got=f"{path}, which {whom} is writing",
        fix="close the other watch, or name another file",
    )


def _start_log(connection: sqlite3.Connection, path: Path) -> str:
    """Turn the write-ahead log on where the file system allows it; where not, says why."""
    kind = network_kind(path)
    (mode,) = connection.execute(f"PRAGMA journal_mode = {'DELETE' if kind else 'WAL'}").fetchone()
    if mode == "wal":
        return ""
    return f"it is on a network file system ({kind})" if kind else "the file system cannot share memory"


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
    stored = read_info(connection, path)
    if not resume:
        raise InputError(
            expected="a new file",
            got=f"{path}, which holds a run of {_said(stored)}",
            fix="name another file, or allow the run to resume",
        )
    same = (stored.model, stored.parameters) == (info.model, info.parameters)
    if not same or info.id not in ("", stored.id):
        raise InputError(
            expected=f"a new file, or one of this run: {_said(info)}",
            got=f"{path}, which holds another run: {_said(stored)}",
            fix="give each run a file of its own",
        )
    return stored


def _said(info: RunInfo) -> str:
    identity = f", id {info.id}" if info.id else ""
    return f"{info.model or 'a model without name'} ({info.parameters:,} parameters{identity})"
