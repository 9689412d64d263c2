"""Reading a run file, also while another process writes it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import threading
from array import array
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import msgspec

from leadline.errors import InputError, SchemaError
from leadline.monitor.runfile.owner import current_owner, read_owner, seems_alive
from leadline.monitor.runfile.schema import LAST_SEQ, connect, explain_error, holds_run, read_info
from leadline.monitor.runfile.store import RunStore
from leadline.monitor.runfile.tail import tail_path
from leadline.records.run import Alert, Event, RunInfo, note_from_json

NAN = float("nan")
# Derived: the largest integer of SQLite.
MAX_STEP = 2**63 - 1

Series = tuple[list[int], list[float]]
State = Literal["writing", "ended", "broken off"]
VectorSeries = tuple[list[int], list["array[float]"]]


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """Everything written after a cursor, in the order of writing."""

    cursor: int
    scalars: dict[str, Series]
    vectors: dict[str, VectorSeries]
    alerts: tuple[Alert, ...]
    events: tuple[Event, ...]
    reports: tuple[int, ...]
    """Steps of the reports."""


class Run:
    """One run. Every property reads the file when it is accessed; nothing is ever written."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.RLock()
        self._connection = _open(self.path)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def info(self) -> RunInfo:
        with self._reading():
            return read_info(self._connection, self.path)

    @property
    def state(self) -> State:
        """Whether a process writes the file, has closed it, or broke off because it was killed or lost the file."""
        with self._reading():
            owner = read_owner(self._connection)
        if owner is None:
            return "ended"
        if seems_alive(owner):
            return "writing"
        with self._reading():
            self._connection = _completed(self._connection, self.path)
        return "broken off"

    @property
    def is_live(self) -> bool:
        """True while a process writes the file."""
        return self.state == "writing"

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        return {
            name: _labels(text) for name, text in self._all("SELECT name, labels FROM axis", kinds=(str, str))
        }

    @property
    def metrics(self) -> dict[str, str | None]:
        """Axis by metric name, None for a scalar. A name that is both (usually grad_norm) shows its axis."""
        rows = self._all("SELECT name, axis FROM metric ORDER BY axis = '' DESC, id", kinds=(str, str))
        return {name: axis or None for name, axis in rows}

    @property
    def scalar_names(self) -> tuple[str, ...]:
        rows = self._all("SELECT name FROM metric WHERE axis = '' ORDER BY id", kinds=(str,))
        return tuple(name for (name,) in rows)

    @property
    def vector_axes(self) -> dict[str, str]:
        """Axis by vector name."""
        rows = self._all("SELECT name, axis FROM metric WHERE axis <> '' ORDER BY id", kinds=(str, str))
        return dict(rows)

    @property
    def steps(self) -> list[int]:
        return [step for (step,) in self._all("SELECT step FROM step ORDER BY step", kinds=(int,))]

    @property
    def first_step(self) -> int | None:
        (first,) = self._one("SELECT min(step) FROM step")
        return None if first is None else int(first)

    @property
    def extent(self) -> tuple[int, int | None, float | None]:
        """The number of steps, the last step, and when it was written."""
        count, last = self._one("SELECT count(*), max(step) FROM step")
        row = self._one("SELECT time FROM step WHERE step = ?", last)
        return count, last, row and _number(row[0])

    def latest(self, name: str) -> float | None:
        """Return the last value of a scalar; None if there is none."""
        row = self._one(
            "SELECT entry.value FROM entry JOIN metric ON entry.metric = metric.id"
            " WHERE metric.name = ? AND metric.axis = '' ORDER BY entry.step DESC LIMIT 1",
            name,
        )
        return None if row is None else _number(row[0])

    def times(self) -> dict[int, float]:
        """Return when each step was written, in seconds since 1970."""
        return dict(self._all("SELECT step, time FROM step ORDER BY step", kinds=(int, float)))

    def scalars(self, name: str, since: int = 0, until: int | None = None) -> Series:
        """Return the steps from `since` to before `until` that have a value, and the values."""
        rows = self._entries(name, since, until, vector=False)
        return [step for step, _ in rows], [_number(value) for _, value in rows]

    def vectors(self, name: str, since: int = 0, until: int | None = None) -> VectorSeries:
        """Return the steps and one array per step for a metric that has an axis."""
        rows = self._entries(name, since, until, vector=True)
        return [step for step, _ in rows], [_unpack(blob) for _, blob in rows]

    def vector_steps(self, name: str) -> list[int]:
        """Return the steps at which a vector was measured, without reading its numbers."""
        key = self._metric(name, vector=True)
        rows = self._all("SELECT step FROM entry WHERE metric = ? ORDER BY step", key, kinds=(int,))
        return [step for (step,) in rows]

    def _entries(self, name: str, since: int, until: int | None, *, vector: bool) -> list[Any]:
        return self._all(
            "SELECT step, value FROM entry WHERE metric = ? AND step >= ? AND step <= ? ORDER BY step",
            self._metric(name, vector=vector),
            since,
            MAX_STEP if until is None else until - 1,
            kinds=(int, object),
        )

    def _metric(self, name: str, *, vector: bool) -> int:
        operator = "<>" if vector else "="
        row = self._one(f"SELECT id FROM metric WHERE name = ? AND axis {operator} ''", name)
        if row is None:
            known = ", ".join(self.vector_axes if vector else self.scalar_names) or "none"
            raise InputError(
                expected=f"one of the run's {'vectors' if vector else 'scalars'}: {known}",
                got=repr(name),
                fix="choose one of these",
            )
        return int(row[0])

    def alerts(self, since: int = 0) -> list[Alert]:
        """Return the alerts raised or cleared at step `since` or later, in order."""
        return [note_from_json(body, Alert) for body in self._notes("alert", since)]

    @property
    def standing(self) -> list[Alert]:
        """The active alerts: raised and not cleared since the run was last started."""
        query = "SELECT kind, body FROM note WHERE kind IN ('alert', 'event') ORDER BY seq"
        raised: dict[tuple[str, int], Alert] = {}
        for kind, body in self._all(query, kinds=(str, str)):
            if kind == "event":
                if note_from_json(body, Event).kind == "resume":
                    raised.clear()
                continue
            alert = note_from_json(body, Alert)
            if alert.state == "raised":
                raised[alert.code, alert.rank] = alert
            else:
                raised.pop((alert.code, alert.rank), None)
        return [*raised.values()]

    def events(self, since: int = 0) -> list[Event]:
        return [note_from_json(body, Event) for body in self._notes("event", since)]

    @property
    def reports(self) -> list[int]:
        """Steps at which the report of a check was stored."""
        query = "SELECT DISTINCT step FROM note WHERE kind = 'report' ORDER BY step"
        rows = self._all(query, kinds=(int,))
        return [step for (step,) in rows]

    def report(self, step: int) -> str:
        """Return the report stored at this step as JSON, which `Report.from_json` reads."""
        row = self._one("SELECT body FROM note WHERE kind = 'report' AND step = ? ORDER BY seq DESC", step)
        if row is None:
            raise InputError(
                expected=f"a step with a report: {', '.join(map(str, self.reports)) or 'none'}",
                got=str(step),
                fix="choose one of these",
            )
        return str(row[0])

    def _notes(self, kind: str, since: int) -> list[str]:
        query = "SELECT body FROM note WHERE kind = ? AND step >= ? ORDER BY seq"
        rows = self._all(query, kind, since, kinds=(str,))
        return [body for (body,) in rows]

    @property
    def cursor(self) -> int:
        """A number that grows with everything that is written."""
        (last,) = self._one(LAST_SEQ)
        return int(last)

    def since(self, cursor: int) -> Changes:
        """Return everything written after a cursor, read in one transaction."""
        with self._reading():
            self._connection.execute("BEGIN")
            try:
                return self._changes(cursor)
            finally:
                self._connection.execute("COMMIT")

    def _changes(self, cursor: int) -> Changes:
        metrics = self._all("SELECT id, name, axis FROM metric", kinds=(int, str, str))
        names = {key: (name, axis) for key, name, axis in metrics}
        scalars: dict[str, Series] = {}
        vectors: dict[str, VectorSeries] = {}
        last = cursor
        query = "SELECT seq, metric, step, value FROM entry WHERE seq > ? ORDER BY seq"
        for seq, metric, step, value in self._all(query, cursor, kinds=(int, int, int, object)):
            name, axis = names[metric]
            last = max(last, seq)
            if axis:
                steps, arrays = vectors.setdefault(name, ([], []))
                arrays.append(_unpack(value))
            else:
                steps, values = scalars.setdefault(name, ([], []))
                values.append(_number(value))
            steps.append(step)
        query = "SELECT seq, kind, step, body FROM note WHERE seq > ? ORDER BY seq"
        notes = self._all(query, cursor, kinds=(int, str, int, str))
        return Changes(
            cursor=max([last, *(note[0] for note in notes)]),
            scalars=scalars,
            vectors=vectors,
            alerts=tuple(note_from_json(body, Alert) for _, kind, _, body in notes if kind == "alert"),
            events=tuple(note_from_json(body, Event) for _, kind, _, body in notes if kind == "event"),
            reports=tuple(step for _, kind, step, _ in notes if kind == "report"),
        )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Let one thread read at a time, and translate SQLite's errors into what is wrong with the file."""
        with self._lock, _translated_errors(self.path):
            yield

    def _all(self, query: str, *values: object, kinds: tuple[type, ...]) -> list[Any]:
        """Return the rows, after a check of every cell's type, because SQLite lets any column hold any type."""
        with self._reading():
            rows = self._connection.execute(query, values).fetchall()
        for column, kind in enumerate(kinds):
            if not all(isinstance(row[column], kind) for row in rows):
                raise SchemaError(f"{self.path} is damaged: a {kind.__name__} has another type")
        return rows

    def _one(self, query: str, *values: object) -> Any:
        with self._reading():
            return self._connection.execute(query, values).fetchone()


def _open(path: Path) -> sqlite3.Connection:
    with _translated_errors(path):
        connection = _connect_for_reading(path)
        try:
            if holds_run(connection, path):
                return _completed(connection, path)
            raise SchemaError(f"{path} is empty: no run was written to it yet")
        except BaseException:
            connection.close()
            raise


def _completed(connection: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """Return a copy in memory that has the steps in the tail too, if a dead writer has left some."""
    owner = read_owner(connection)
    if owner is None or seems_alive(owner) or not tail_path(path).exists():
        return connection
    info, reader = read_info(connection, path), current_owner()
    if not RunStore(connection, path, info, reader).tail_steps():
        return connection
    memory = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    memory.text_factory = connection.text_factory
    connection.backup(memory)
    connection.close()
    RunStore(memory, path, info, reader).complete()
    return memory


def _connect_for_reading(path: Path) -> sqlite3.Connection:
    """Connect to the file, or to a copy if its writer left a log in a folder where SQLite cannot create its index."""
    log = path.with_name(path.name + "-wal")
    connection = connect(path, mode="ro")
    try:
        connection.execute("PRAGMA user_version")
    except sqlite3.OperationalError:
        connection.close()
        if os.access(path.parent, os.W_OK) or not os.access(path, os.R_OK) or path.is_dir():
            raise
        return _copy_to_memory(path, log)
    return connection


def _copy_to_memory(path: Path, log: Path) -> sqlite3.Connection:
    with TemporaryDirectory() as folder:
        copy = Path(shutil.copy(path, Path(folder, "run")))
        if os.access(log, os.R_OK):
            shutil.copy(log, Path(folder, "run-wal"))
        memory = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        with closing(connect(copy, mode="rw")) as connection:
            connection.backup(memory)
    return memory


@contextmanager
def _translated_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise explain_error(error, path) from None
    except KeyError as error:
        raise SchemaError(f"{path} is damaged: it has no metric {error}") from None


def _labels(text: str) -> tuple[str, ...]:
    try:
        return msgspec.json.decode(text, type=tuple[str, ...])
    except (msgspec.DecodeError, TypeError):
        raise SchemaError("the run file is damaged: the labels of an axis cannot be read") from None


def _number(value: object) -> float:
    if value is None:
        return NAN
    if isinstance(value, float | int):
        return float(value)
    raise SchemaError(f"the run file is damaged: a number is a {type(value).__name__}")


def _unpack(blob: object) -> array[float]:
    if not isinstance(blob, bytes) or len(blob) % 4:
        raise SchemaError("the run file is damaged: a vector does not hold float32 values")
    values = array("f", blob)
    if sys.byteorder == "big":  # pragma: no cover  (the tests have no such machine)
        values.byteswap()
    return values
