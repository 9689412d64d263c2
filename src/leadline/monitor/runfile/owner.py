"""Who writes a run file: one process at a time, and how a dead one is told from a living one."""

from __future__ import annotations

import os
import socket
import sqlite3
import time
import uuid
from pathlib import Path

import msgspec

from leadline.errors import SchemaError

BEAT_SECONDS = 2.0  # ours: a writer with nothing to write says this often that it lives
PATIENCE_SECONDS = 10.0  # ours: five beats; a writer on another machine that is silent for so long is dead


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The process that writes, as the file remembers it."""

    host: str
    pid: int
    born: str
    """When the process began, in the system's own unit: process numbers are used again. "" where it is not known."""
    token: str
    """Tells two writers of one process apart."""
    beat: float
    """Seconds since 1970 at which it last wrote."""


def myself() -> Owner:
    pid = os.getpid()
    return Owner(host=socket.gethostname(), pid=pid, born=born(pid), token=uuid.uuid4().hex, beat=time.time())


def born(pid: int) -> str:
    """The 22nd field of /proc/PID/stat; the second is a name in brackets that may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def read_owner(connection: sqlite3.Connection) -> Owner | None:
    row = connection.execute("SELECT value FROM run WHERE key = 'writer'").fetchone()
    try:
        return None if row is None else msgspec.json.decode(row[0], type=Owner)
    except (msgspec.DecodeError, TypeError):
        raise SchemaError("the run file is damaged: who writes it cannot be read") from None


def write_owner(connection: sqlite3.Connection, owner: Owner) -> None:
    now = msgspec.structs.replace(owner, beat=time.time())
    text = msgspec.json.encode(now).decode()
    connection.execute("INSERT OR REPLACE INTO run VALUES ('writer', ?)", (text,))


def is_alive(owner: Owner) -> bool | None:
    """Whether that process still runs; None if it is on another machine, where only its beat can tell."""
    if (
        owner.host != socket.gethostname() or os.name == "nt"
    ):  # there, os.kill(pid, 0) is no question but a Ctrl-C
        return None
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is somebody else's process, and alive
    return born(owner.pid) == owner.born


def seems_alive(owner: Owner) -> bool:
    """The same without waiting, for a display: a beat of another machine counts while it is fresh."""
    alive = is_alive(owner)
    return time.time() - owner.beat < PATIENCE_SECONDS if alive is None else alive
