"""The process that writes a run file: one at a time, and how to tell whether it is still alive."""

from __future__ import annotations

import os
import socket
import sqlite3
import time
import uuid
from pathlib import Path

import msgspec

from leadline.errors import SchemaError

# Heuristic: interval at which an idle writer updates its heartbeat; one small transaction each.
HEARTBEAT_SECONDS = 2.0
# Heuristic: a writer on another machine that is silent for five heartbeats is dead.
MAX_SILENCE_SECONDS = 5 * HEARTBEAT_SECONDS


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The writing process, as stored in the file."""

    host: str
    pid: int
    born: str
    """When the process started, in the system's unit, because process ids are reused; "" where it is unknown."""
    token: str
    """Distinguishes two writers of one process."""
    beat: float
    """Time of its last write, in seconds since 1970."""


def current_owner() -> Owner:
    """Return an owner record of this process with a new token."""
    pid = os.getpid()
    return Owner(
        host=socket.gethostname(), pid=pid, born=start_time(pid), token=uuid.uuid4().hex, beat=time.time()
    )


def start_time(pid: int) -> str:
    """Return the 22nd field of /proc/PID/stat; the second field is a name in parentheses with any content."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def read_owner(connection: sqlite3.Connection) -> Owner | None:
    row = connection.execute("SELECT value FROM run WHERE key = 'writer'").fetchone()
    try:
        return None if row is None else msgspec.json.decode(row[0], type=Owner)
    except (msgspec.DecodeError, TypeError):
        raise SchemaError("the run file is damaged: its writer record cannot be read") from None


def write_owner(connection: sqlite3.Connection, owner: Owner) -> None:
    now = msgspec.structs.replace(owner, beat=time.time())
    text = msgspec.json.encode(now).decode()
    connection.execute("INSERT OR REPLACE INTO run VALUES ('writer', ?)", (text,))


def is_alive(owner: Owner) -> bool | None:
    """Return whether the process still runs; None if it is on another machine, where only its heartbeat tells."""
    if owner.host != socket.gethostname() or os.name == "nt":  # on Windows, os.kill(pid, 0) sends a Ctrl-C
        return None
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # the process is alive and belongs to another user
    return start_time(owner.pid) == owner.born


def seems_alive(owner: Owner) -> bool:
    """Return whether the process runs, without waiting: on another machine a recent heartbeat counts."""
    alive = is_alive(owner)
    return time.time() - owner.beat < MAX_SILENCE_SECONDS if alive is None else alive
