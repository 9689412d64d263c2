"""A run file that this process writes: each batch is stored in one transaction or not at all."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import msgspec

from leadline.errors import SchemaError
from leadline.monitor.runfile.owner import Owner, read_owner, write_owner
from leadline.monitor.runfile.queue import Batch, DroppedSteps, Note, ScalarColumns, StepNumbers
from leadline.monitor.runfile.schema import LAST_SEQ
from leadline.monitor.runfile.tail import read_tail
from leadline.records.run import Event, EventKind, RunInfo, note_to_json

# Heuristic: rows per INSERT statement; half the time of single rows, and far below SQLite's limit of 999 values.
ROWS_PER_INSERT = 64
Axes = Mapping[str, tuple[str, ...]]


class TakenOverError(Exception):
    """Another process has become the writer of this file."""


class WriteProgress(msgspec.Struct, frozen=True):
    """What this start of the run has stored so far; it outlives a file that had to be reopened."""

    last_step: int | None = None
    """The last step in the file when the run was started."""
    first_seq: int = 0
    """The last `seq` in the file when the run was started."""
    newest_step: int | None = None
    """The largest step written since then."""
    duplicates: int = 0
    """Steps that were written twice since then."""


class TailState(msgspec.Struct, frozen=True):
    """How much of the tail is stored; see `leadline.monitor.runfile.tail`."""

    token: str
    """The writer to which the tail belongs."""
    stored: int
    """The number of the last record that is stored."""
    progress: WriteProgress


class RunStore:
    """An open run file with the writer's connection."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        info: RunInfo,
        owner: Owner,
        *,
        no_wal_reason: str = "",
    ) -> None:
        self.path, self.info = path, info
        self.no_wal_reason = no_wal_reason
        """Why there is no write-ahead log; "" if there is one."""
        self.has_tail = False
        """Whether steps that are not stored yet are in a tail."""
        self.connection, self._owner = connection, owner
        self._loss_message = ""
        self._inode = path.stat().st_ino
        run = connection.execute
        (last_step,) = run("SELECT max(step) FROM step").fetchone()
        (self._seq,) = run(LAST_SEQ).fetchone()
        self._metrics: dict[tuple[str, str], int] = {
            (name, axis): key for key, name, axis in run("SELECT id, name, axis FROM metric")
        }
        self.progress = WriteProgress(last_step=last_step, first_seq=self._seq)

    @property
    def last_step(self) -> int | None:
        """The last step in the file when the run was started."""
        return self.progress.last_step

    def continue_from(self, progress: WriteProgress) -> None:
        """Continue after the file was reopened in the same start of the run."""
        if progress.newest_step is None:
            return
        if self._seq:
            self.progress = progress
        else:
            self._loss_message = f"the file was deleted, and steps up to {progress.newest_step} with it"

    def save(self, batch: Batch, axes: Axes) -> None:
        """Store the whole batch or nothing. An empty batch updates the heartbeat."""
        self._check_file()
        before = self._seq, dict(self._metrics), self.progress
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            self._check_owner()
            write_owner(self.connection, self._owner)
            self._save_axes(axes)
            self._record_losses(batch.dropped)
            for each in batch.steps:
                self._save_steps(each)
            for note in batch.notes:
                self._save_note(note)
            if self.has_tail:
                self._save_tail_state(batch.last_number)
            self.connection.execute("COMMIT")
        except BaseException:
            self._seq, self._metrics, self.progress = before
            self._roll_back()
            raise

    def complete(self) -> bool:
        """Store what a dead writer left in the tail, as it would have; return whether there was something."""
        state = self._tail_state()
        steps = self.tail_steps()
        if state is None or not steps:
            return False
        self.progress = state.progress
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            for each in steps:
                self._save_steps(each)
            self._save_tail_state(0)
            self.connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        return True

    def tail_steps(self) -> list[StepNumbers | ScalarColumns]:
        """Return the steps that another writer has left in the tail and not stored."""
        state = self._tail_state()
        if state is None or state.token == self._owner.token:
            return []
        return read_tail(self.path, state.token, state.stored)

    def _tail_state(self) -> TailState | None:
        row = self.connection.execute("SELECT value FROM run WHERE key = 'tail'").fetchone()
        try:
            return None if row is None else msgspec.json.decode(row[0], type=TailState)
        except (msgspec.DecodeError, TypeError):
            raise SchemaError("the run file is damaged: the record of its tail cannot be read") from None

    def _save_tail_state(self, stored: int) -> None:
        text = msgspec.json.encode(TailState(self._owner.token, stored, self.progress)).decode()
        self.connection.execute("INSERT OR REPLACE INTO run VALUES ('tail', ?)", (text,))

    def _save_axes(self, axes: Axes) -> None:
        for name, labels in axes.items():
            text = json.dumps(labels)
            row = self.connection.execute("SELECT labels FROM axis WHERE name = ?", (name,)).fetchone()
            if row is not None and row[0] != text:
                self._add_event(
                    "warning", self._newest_step, f"the {name} changed: earlier vectors have other labels"
                )
            self.connection.execute("INSERT OR REPLACE INTO axis VALUES (?, ?)", (name, text))

    def _record_losses(self, dropped: DroppedSteps) -> None:
        if dropped.count:
            steps = f"{dropped.count} steps from {dropped.first} to {dropped.last}"
            message = f"{steps} could not be written and were dropped"
            self._add_event("warning", dropped.last, message, msgspec.structs.asdict(dropped))
        if self._loss_message:
            self._add_event("warning", self._newest_step, self._loss_message)
            self._loss_message = ""

    @property
    def _newest_step(self) -> int:
        newest = self.progress.newest_step
        return (self.progress.last_step if newest is None else newest) or 0

    def _save_steps(self, steps: StepNumbers | ScalarColumns) -> None:
        newest = self.progress.newest_step
        if isinstance(steps, StepNumbers):
            self._save_step(steps)
        elif newest is not None and steps.steps[0] > max(newest, self.progress.last_step or 0):
            self._save_new_columns(steps)
        else:  # steps that may exist already, or the first ones after a resume
            for each in steps.split():
                self._save_step(each)

    def _save_new_columns(self, columns: ScalarColumns) -> None:
        """Store steps of which the file holds nothing yet."""
        self.progress = msgspec.structs.replace(self.progress, newest_step=columns.steps[-1])
        self._insert("step", list(zip(columns.steps, columns.times, strict=True)))
        for name, values in columns.scalars.items():
            key, first = self._metric(name, ""), self._seq + 1
            pairs = zip(columns.steps, values, strict=True)
            known = [(step, each) for step, each in pairs if each is not None]
            self._seq += len(known)
            self._insert("entry", [(seq, key, *pair) for seq, pair in enumerate(known, first)])

    def _insert(self, table: str, rows: Sequence[tuple[float, ...]]) -> None:
        """Insert many rows per statement, because the interpreter's lock changes hands between two statements."""
        whole = len(rows) - len(rows) % ROWS_PER_INSERT
        placeholders = f"({', '.join('?' * len(rows[0]))})" if rows else ""
        for start in range(0, whole, ROWS_PER_INSERT):
            values = list(chain.from_iterable(rows[start : start + ROWS_PER_INSERT]))
            statement = f"INSERT INTO {table} VALUES {', '.join([placeholders] * ROWS_PER_INSERT)}"
            self.connection.execute(statement, values)
        if rows[whole:]:
            self.connection.executemany(f"INSERT INTO {table} VALUES {placeholders}", rows[whole:])

    def _save_step(self, numbers: StepNumbers) -> None:
        step, newest, last_step = numbers.step, self.progress.newest_step, self.progress.last_step
        if newest is None:
            self._record_resume(step)
        if last_step is not None and step <= last_step:
            self._delete_old_numbers(step)
        elif newest is not None and step <= newest:
            self._record_duplicate(numbers)
        newest = step if newest is None else max(newest, step)
        self.progress = msgspec.structs.replace(self.progress, newest_step=newest)
        self.connection.execute("INSERT OR REPLACE INTO step VALUES (?, ?)", (step, numbers.time))
        rows = [(self._metric(name, ""), step, value) for name, value in numbers.scalars.items()]
        blobs = [(self._metric(name, axis), step, blob) for name, (axis, blob) in numbers.vectors.items()]
        first, self._seq = self._seq + 1, self._seq + len(rows) + len(blobs)
        numbered = ((seq, *row) for seq, row in enumerate((*rows, *blobs), first))
        self.connection.executemany("INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?)", numbered)

    def _save_note(self, note: Note) -> None:
        self._seq += 1
        row = (self._seq, note.kind, note.step, note.body)
        self.connection.execute("INSERT INTO note VALUES (?, ?, ?, ?)", row)

    def _metric(self, name: str, axis: str) -> int:
        if (name, axis) not in self._metrics:
            self._metrics[name, axis] = 1 + max(self._metrics.values(), default=0)
            row = (self._metrics[name, axis], name, axis)
            self.connection.execute("INSERT INTO metric VALUES (?, ?, ?)", row)
        return self._metrics[name, axis]

    def _delete_old_numbers(self, step: int) -> None:
        """Delete all numbers of a step from an earlier start of the run, because it is written again."""
        old = ((metric, step, self.progress.first_seq) for metric in self._metrics.values())
        self.connection.executemany("DELETE FROM entry WHERE metric = ? AND step = ? AND seq <= ?", old)

    def _record_resume(self, step: int) -> None:
        if self.last_step is None:
            return
        rewritten = f"; steps {step} to {self.last_step} are written again and replace the earlier ones"
        message = f"resumed at step {step}{rewritten if step <= self.last_step else ''}"
        self._add_event("resume", step, message, {"last": self.last_step})

    def _record_duplicate(self, numbers: StepNumbers) -> None:
        """Warn once per start, because a loop that writes a step twice does so at every step."""
        keys = [self._metrics.get((name, "")) for name in numbers.scalars]
        keys += [self._metrics.get((name, axis)) for name, (axis, _) in numbers.vectors.items()]
        query = "SELECT 1 FROM entry WHERE metric = ? AND step = ?"
        if any(self.connection.execute(query, (key, numbers.step)).fetchone() for key in keys):
            duplicates = self.progress.duplicates + 1
            self.progress = msgspec.structs.replace(self.progress, duplicates=duplicates)
            if duplicates == 1:
                message = f"step {numbers.step} was written twice; the later numbers replace the earlier ones"
                self._add_event("warning", numbers.step, message)

    def _add_event(
        self, kind: EventKind, step: int, message: str, data: dict[str, object] | None = None
    ) -> None:
        """Store an event about the file itself; call it only within a transaction."""
        event = Event(step=step, time=time.time(), kind=kind, message=message, data=data or {})
        self._save_note(Note("event", step, note_to_json(event)))

    def _check_file(self) -> None:
        """Raise if the file was deleted or replaced; SQLite would go on writing where no reader looks.

        A network file system may renumber its files, so there it suffices that the file exists.
        """
        if self.path.stat().st_ino != self._inode and not self.no_wal_reason:
            raise FileNotFoundError(f"{self.path} was replaced by another file")

    def _check_owner(self) -> None:
        owner = read_owner(self.connection)
        if owner is None or owner.token != self._owner.token:
            raise TakenOverError

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # after a full disk SQLite has already rolled back
            self.connection.execute("ROLLBACK")

    def release(self) -> None:
        """Let others write, and merge the log into the file, which can then be copied and read alone."""
        run = self.connection.execute
        self._check_file()
        run("BEGIN IMMEDIATE")
        try:
            self._check_owner()
            run("DELETE FROM run WHERE key IN ('writer', 'tail')")
            run("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        run("PRAGMA busy_timeout = 0")  # with an active reader the log stays
        run("PRAGMA wal_checkpoint(TRUNCATE)")
        run("PRAGMA journal_mode = DELETE")

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self.connection.close()
