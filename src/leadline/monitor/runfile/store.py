"""The file as its writer has it open: a batch is stored in one transaction, or not at all."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import msgspec

from leadline.monitor.runfile.owner import Owner, read_owner, write_owner
from leadline.monitor.runfile.queue import Batch, Lost, Note, Put, Rows
from leadline.monitor.runfile.schema import LAST_SEQ
from leadline.records.run import Event, EventKind, RunInfo, note_to_json

AT_ONCE = (
    64  # rows a statement; ours: half the time of one by one, and far below SQLite's limit of 999 values
)
Axes = Mapping[str, tuple[str, ...]]


class TakenOverError(Exception):
    """Another process writes this file now."""


class Past(msgspec.Struct, frozen=True):
    """What this start of the run has stored so far; outlives a file that had to be opened again."""

    last_step: int | None = None
    """The last step that was there when the run was started."""
    opening: int = 0
    """The last `seq` that was there when the run was started."""
    newest: int | None = None
    """The largest step since then."""
    doubles: int = 0
    """Steps that were written twice since then."""


class Store:
    """A run file that this process writes."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        info: RunInfo,
        owner: Owner,
        *,
        without_log: str = "",
    ) -> None:
        self.path, self.info = path, info
        self.without_log = without_log
        """Why there is no write-ahead log; "" if there is one."""
        self._connection, self._owner = connection, owner
        self._vanished = ""
        self._inode = path.stat().st_ino
        run = connection.execute
        (last_step,) = run("SELECT max(step) FROM step").fetchone()
        (self._seq,) = run(LAST_SEQ).fetchone()
        self._metrics: dict[tuple[str, str], int] = {
            (name, axis): key for key, name, axis in run("SELECT id, name, axis FROM metric")
        }
        self.past = Past(last_step=last_step, opening=self._seq)

    @property
    def last_step(self) -> int | None:
        """The last step that the file held when the run was started."""
        return self.past.last_step

    def go_on(self, past: Past) -> None:
        """The file was open before, in the same start of the run."""
        if past.newest is None:
            return
        if self._seq:
            self.past = past
        else:
            self._vanished = f"the file was gone; steps up to {past.newest} went with it"

    def save(self, batch: Batch, axes: Axes) -> None:
        """All or nothing. An empty batch is a sign of life."""
        self._check_place()
        before = self._seq, dict(self._metrics), self.past
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._check_owner()
            write_owner(self._connection, self._owner)
            self._save_axes(axes)
            self._confess(batch.lost)
            for put in batch.puts:
                self._save_puts(put)
            for note in batch.notes:
                self._save_note(note)
            self._connection.execute("COMMIT")
        except BaseException:
            self._seq, self._metrics, self.past = before
            self._roll_back()
            raise

    def _save_axes(self, axes: Axes) -> None:
        for name, labels in axes.items():
            text = json.dumps(labels)
            row = self._connection.execute("SELECT labels FROM axis WHERE name = ?", (name,)).fetchone()
            if row is not None and row[0] != text:
                self.tell(
                    "warning", self._now, f"the {name} are others now: vectors before this had other labels"
                )
            self._connection.execute("INSERT OR REPLACE INTO axis VALUES (?, ?)", (name, text))

    def _confess(self, lost: Lost) -> None:
        if lost.count:
            message = (
                f"{lost.count} steps from {lost.first} to {lost.last} could not be written, and were let go"
            )
            self.tell("warning", lost.last, message, msgspec.structs.asdict(lost))
        if self._vanished:
            self.tell("warning", self._now, self._vanished)
            self._vanished = ""

    @property
    def _now(self) -> int:
        newest = self.past.last_step if self.past.newest is None else self.past.newest
        return newest or 0

    def _save_puts(self, put: Put | Rows) -> None:
        if isinstance(put, Put):
            self._save_put(put)
        elif self.past.newest is not None and put.steps[0] > max(self.past.newest, self.past.last_step or 0):
            self._save_rows(put)
        else:  # steps that were there before, or the first ones after a resume: each needs a look
            for each in put.apart():
                self._save_put(each)

    def _save_rows(self, rows: Rows) -> None:
        """New steps, of which nothing is known yet."""
        self.past = msgspec.structs.replace(self.past, newest=rows.steps[-1])
        self._insert("step", list(zip(rows.steps, rows.times, strict=True)))
        for name, values in rows.scalars.items():
            key, first = self._metric(name, ""), self._seq + 1
            known = [(step, each) for step, each in zip(rows.steps, values, strict=True) if each is not None]
            self._seq += len(known)
            self._insert("entry", [(seq, key, *pair) for seq, pair in enumerate(known, first)])

    def _insert(self, table: str, rows: Sequence[tuple[float, ...]]) -> None:
        """Many rows a statement: between two statements the interpreter's lock goes to and fro."""
        whole = len(rows) - len(rows) % AT_ONCE
        one = f"({', '.join('?' * len(rows[0]))})" if rows else ""
        for start in range(0, whole, AT_ONCE):
            values = list(chain.from_iterable(rows[start : start + AT_ONCE]))
            self._connection.execute(f"INSERT INTO {table} VALUES {', '.join([one] * AT_ONCE)}", values)
        if rows[whole:]:
            self._connection.executemany(f"INSERT INTO {table} VALUES {one}", rows[whole:])

    def _save_put(self, put: Put) -> None:
        newest, last_step = self.past.newest, self.past.last_step
        if newest is None:
            self._tell_resumed(put.step)
        if last_step is not None and put.step <= last_step:
            self._forget(put.step)
        elif newest is not None and put.step <= newest:
            self._tell_double(put)
        newest = put.step if newest is None else max(newest, put.step)
        self.past = msgspec.structs.replace(self.past, newest=newest)
        self._connection.execute("INSERT OR REPLACE INTO step VALUES (?, ?)", (put.step, put.time))
        rows = [(self._metric(name, ""), put.step, value) for name, value in put.scalars.items()]
        blobs = [(self._metric(name, axis), put.step, blob) for name, (axis, blob) in put.vectors.items()]
        first, self._seq = self._seq + 1, self._seq + len(rows) + len(blobs)
        numbered = ((seq, *row) for seq, row in enumerate((*rows, *blobs), first))
        self._connection.executemany("INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?)", numbered)

    def _save_note(self, note: Note) -> None:
        self._seq += 1
        row = (self._seq, note.kind, note.step, note.body)
        self._connection.execute("INSERT INTO note VALUES (?, ?, ?, ?)", row)

    def _metric(self, name: str, axis: str) -> int:
        if (name, axis) not in self._metrics:
            self._metrics[name, axis] = 1 + max(self._metrics.values(), default=0)
            row = (self._metrics[name, axis], name, axis)
            self._connection.execute("INSERT INTO metric VALUES (?, ?, ?)", row)
        return self._metrics[name, axis]

    def _forget(self, step: int) -> None:
        """A step that an earlier start of the run had reached is written anew: none of its old numbers stays."""
        old = ((metric, step, self.past.opening) for metric in self._metrics.values())
        self._connection.executemany("DELETE FROM entry WHERE metric = ? AND step = ? AND seq <= ?", old)

    def _tell_resumed(self, step: int) -> None:
        if self.last_step is None:
            return
        again = f"; steps {step} to {self.last_step} are written again, the later counts"
        message = f"resumed at step {step}{again if step <= self.last_step else ''}"
        self.tell("resume", step, message, {"last": self.last_step})

    def _tell_double(self, put: Put) -> None:
        """Once a start: who does it does it at every step."""
        keys = [self._metrics.get((name, "")) for name in put.scalars]
        keys += [self._metrics.get((name, axis)) for name, (axis, _) in put.vectors.items()]
        query = "SELECT 1 FROM entry WHERE metric = ? AND step = ?"
        if any(self._connection.execute(query, (key, put.step)).fetchone() for key in keys):
            self.past = msgspec.structs.replace(self.past, doubles=self.past.doubles + 1)
            if self.past.doubles == 1:
                self.tell("warning", put.step, f"step {put.step} was written twice; the later counts")

    def tell(self, kind: EventKind, step: int, message: str, data: dict[str, object] | None = None) -> None:
        """An event about the file itself. Only within a transaction."""
        event = Event(step=step, time=time.time(), kind=kind, message=message, data=data or {})
        self._save_note(Note("event", step, note_to_json(event)))

    def _check_place(self) -> None:
        """SQLite goes on writing to a file that was deleted; nobody would ever read that.

        A network file system may number its files anew; there it is enough that one is there.
        """
        if self.path.stat().st_ino != self._inode and not self.without_log:
            raise FileNotFoundError(f"{self.path} is another file now")

    def _check_owner(self) -> None:
        owner = read_owner(self._connection)
        if owner is None or owner.token != self._owner.token:
            raise TakenOverError

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # of a full disk SQLite has rolled back by itself
            self._connection.execute("ROLLBACK")

    def release(self) -> None:
        """Let others write, and fold the log into the file: then it is one file that can be read anywhere."""
        run = self._connection.execute
        self._check_place()
        run("BEGIN IMMEDIATE")
        try:
            self._check_owner()
            run("DELETE FROM run WHERE key = 'writer'")
            run("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        run("PRAGMA busy_timeout = 0")  # a reader may stay as long as it likes: then the log stays too
        run("PRAGMA wal_checkpoint(TRUNCATE)")
        run("PRAGMA journal_mode = DELETE")

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
