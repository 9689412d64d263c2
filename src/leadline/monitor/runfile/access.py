"""Opening a run file for writing: a new file is created, a file of the same run resumed, any other refused."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import uuid
from pathlib import Path

from msgspec.structs import replace

from leadline import __version__
from leadline.errors import InputError
from leadline.monitor.runfile.owner import MAX_SILENCE_SECONDS, Owner, is_alive, read_owner, write_owner
from leadline.monitor.runfile.schema import TABLES, connect, holds_run, read_info
from leadline.monitor.runfile.store import RunStore
from leadline.records.run import RunInfo, note_to_json

MOUNTS = Path("/proc/self/mounts")

# File systems, by their names in the Linux kernel, on which SQLite's write-ahead log fails without an error, because
# machines do not share memory.
# Cited: sqlite.org/wal.html, "all processes using a database must be on the same host computer".
# fmt: off
NETWORK_FILE_SYSTEMS = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs",
    "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "panfs", "smb3", "smbfs",
    "vboxsf", "virtiofs", "wekafs",
})
# fmt: on


def network_file_system(path: Path, mounts: str | None = None) -> str:
    """Return the kind of network file system that holds the file; "" if there is none or it is unknown."""
    kinds = _mount_kinds(_read_mounts() if mounts is None else mounts)
    folder = path.absolute().parent.resolve()
    nearest = next((each for each in (folder, *folder.parents) if str(each) in kinds), None)
    kind = kinds[str(nearest)] if nearest is not None else ""
    return kind if kind in NETWORK_FILE_SYSTEMS else ""


def _mount_kinds(mounts: str) -> dict[str, str]:
    """Return the kind of each mount point; the last mount on a point hides the earlier ones."""
    rows = (line.split() for line in mounts.splitlines())
    return {row[1].replace("\\040", " "): row[2] for row in rows if len(row) > 2}


def _read_mounts() -> str:
    try:
        return MOUNTS.read_text(errors="replace")
    except OSError:  # not Linux, where only SQLite's own answer is available
        return ""


# Heuristic: interval at which the heartbeat of a writer on another machine is read; a fraction of its own interval.
HEARTBEAT_POLL_SECONDS = 0.25


def open_store(path: Path, info: RunInfo, owner: Owner, *, resume: bool) -> RunStore:
    """Return the file, ready to be written by `owner`.

    Raises InputError or SchemaError if this run must not write it, and OSError or sqlite3.OperationalError if it
    cannot be written at the moment.
    """
    if path.is_dir():
        raise InputError(expected="a file to write", got=f"the directory {path}", fix="name a file in it")
    may_continue = (not path.exists() and _create_whole(path, info)) or resume
    connection = connect(path, mode="rwc")
    try:
        dead = None
        if holds_run(connection, path):
            dead = _dead_owner(connection)
            _check_run(connection, path, info, resume=may_continue)  # before anything in the file is changed
        no_wal_reason = _start_wal(connection, path)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        if holds_run(connection, path):  # tested again, because another process may have created it since
            _refuse_other_writer(read_owner(connection), path, dead, owner)
            info = _check_run(connection, path, info, resume=may_continue)
        else:
            info = _create(connection, info)
        write_owner(connection, owner)
        connection.execute("COMMIT")
        store = RunStore(connection, path, info, owner, no_wal_reason=no_wal_reason)
        if store.complete():  # then the last step is another one
            store = RunStore(connection, path, info, owner, no_wal_reason=no_wal_reason)
        return store
    except BaseException:
        connection.close()
        raise


def _create_whole(path: Path, info: RunInfo) -> bool:
    """Create the file under another name and link it when it is whole, so that a kill leaves no empty file.

    Return False if that failed: another process was faster, or the file system has no links.
    """
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with contextlib.closing(connect(part, mode="rwc")) as connection:
            connection.execute("BEGIN IMMEDIATE")
            _create(connection, info)
            connection.execute("COMMIT")
        os.link(part, path)
    except (OSError, sqlite3.Error):
        return False
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    return True


def _dead_owner(connection: sqlite3.Connection) -> Owner | None:
    """Return a writer on another machine that stays silent for `MAX_SILENCE_SECONDS` by this machine's clock."""
    owner = now = read_owner(connection)
    if owner is None or is_alive(owner) is not None:
        return None
    end = time.monotonic() + MAX_SILENCE_SECONDS
    while now == owner and time.monotonic() < end:
        time.sleep(HEARTBEAT_POLL_SECONDS)
        now = read_owner(connection)
    return owner if now == owner else None


def _refuse_other_writer(owner: Owner | None, path: Path, dead: Owner | None, new: Owner) -> None:
    if owner is None or owner == dead or owner.token == new.token or is_alive(owner) is False:
        return
    is_same_process = (owner.host, owner.pid) == (new.host, new.pid)
    writer = "this process" if is_same_process else f"process {owner.pid} on {owner.host}"
    raise InputError(
        expected="a run file that has no other writer",
        got=f"{path}, which {writer} is writing",
        fix="close the other watch, or name another file",
    )


def _start_wal(connection: sqlite3.Connection, path: Path) -> str:
    """Turn on the write-ahead log; return "", or why the file system does not allow it."""
    kind = network_file_system(path)
    (mode,) = connection.execute(f"PRAGMA journal_mode = {'DELETE' if kind else 'WAL'}").fetchone()
    if mode == "wal":
        return ""
    return f"it is on a network file system ({kind})" if kind else "the file system cannot share memory"


def _create(connection: sqlite3.Connection, info: RunInfo) -> RunInfo:
    for statement in TABLES.strip().split(";\n"):
        connection.execute(statement)
    info = replace(
        info, id=info.id or uuid.uuid4().hex, started=info.started or time.time(), leadline=__version__
    )
    connection.execute("INSERT INTO run VALUES ('info', ?)", (note_to_json(info),))
    return info


def _check_run(connection: sqlite3.Connection, path: Path, info: RunInfo, *, resume: bool) -> RunInfo:
    """Return the stored RunInfo; raise InputError unless the file belongs to this run and may be resumed."""
    stored = read_info(connection, path)
    if not resume:
        raise InputError(
            expected="a new file",
            got=f"{path}, which holds a run of {_describe(stored)}",
            fix="name another file, or pass resume=True",
        )
    is_same_model = (stored.model, stored.parameters) == (info.model, info.parameters)
    if not is_same_model or info.id not in ("", stored.id):
        raise InputError(
            expected=f"a new file, or one of this run: {_describe(info)}",
            got=f"{path}, which holds another run: {_describe(stored)}",
            fix="use one file per run",
        )
    return stored


def _describe(info: RunInfo) -> str:
    identity = f", id {info.id}" if info.id else ""
    return f"{info.model or 'an unnamed model'} ({info.parameters:,} parameters{identity})"
