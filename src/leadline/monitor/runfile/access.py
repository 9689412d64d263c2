"""How a writer opens a run file: created, resumed or refused."""

from __future__ import annotations

import sqlite3
import time
import uuid
from pathlib import Path

from msgspec.structs import replace

from leadline.errors import InputError
from leadline.monitor.runfile.owner import PATIENCE_SECONDS, Owner, is_alive, read_owner, write_owner
from leadline.monitor.runfile.schema import TABLES, connect, read_info, recognise
from leadline.monitor.runfile.store import Store
from leadline.records.run import RunInfo, note_to_json

MOUNTS = Path("/proc/self/mounts")

# Between machines memory is not shared, and SQLite does not notice. Names as the Linux kernel writes them.
# Source: sqlite.org/wal.html, "all processes using a database must be on the same host computer".
# fmt: off
NETWORK = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs",
    "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "panfs", "smb3", "smbfs",
    "vboxsf", "virtiofs", "wekafs",
})
# fmt: on


def network_kind(path: Path, mounts: str | None = None) -> str:
    """The kind of the network file system that the file is on; "" if it is on none, or that is not known."""
    kinds = _mounted(_read_mounts() if mounts is None else mounts)
    place = path.absolute().parent.resolve()
    nearest = next((each for each in (place, *place.parents) if str(each) in kinds), None)
    kind = kinds[str(nearest)] if nearest is not None else ""
    return kind if kind in NETWORK else ""


def _mounted(mounts: str) -> dict[str, str]:
    """Mount point to kind; what was mounted last on a point is on top."""
    rows = (line.split() for line in mounts.splitlines())
    return {row[1].replace("\\040", " "): row[2] for row in rows if len(row) > 2}


def _read_mounts() -> str:
    try:
        return MOUNTS.read_text(errors="replace")
    except OSError:  # not Linux: then only SQLite's own answer counts
        return ""


# How a writer opens a file: made if it is new, resumed if it holds this run, refused otherwise.

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
