"""The writer of a run file: it takes numbers from the training loop without blocking, and a thread stores them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sqlite3
import sys
import threading
import time
import warnings
import weakref
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

from leadline.errors import LeadlineError
from leadline.monitor.runfile.access import open_store
from leadline.monitor.runfile.owner import HEARTBEAT_SECONDS, current_owner
from leadline.monitor.runfile.queue import (
    MAX_QUEUE_BYTES,
    Batch,
    Note,
    ScalarColumns,
    StepNumbers,
    WriteQueue,
)
from leadline.monitor.runfile.store import RunStore, TakenOverError, WriteProgress
from leadline.monitor.runfile.tail import TailWriter
from leadline.records.run import Alert, Event, RunInfo, note_to_json

# Steps are written together only to save the cost of writing. The pause after a write makes that cost one percent of
# the time, so steps that are slower than the pause are written immediately: to the tail, or to the file if it has none.

# Heuristic: share of the time for transactions, as the default budget of a watch.
MAX_TRANSACTION_SHARE = 0.01
# Heuristic: seconds between two writes at most; little beside the time that steps of a watch wait before.
MAX_PAUSE_SECONDS = 0.01
# Heuristic: seconds between two transactions while the tail holds the steps in between; a page that shows the run is
# never further behind.
MAX_TAIL_SECONDS = 1.0
# Heuristic: seconds before the first retry and the longest wait; the wait doubles after each failure.
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 30.0


_THREADS: weakref.WeakSet[WriterThread] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for thread in list(_THREADS):
        thread.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all_to_parent)


class WriterThread:
    """Owns the connection. Other threads fill `queue` and call `flush`; this thread does everything else."""

    def __init__(self, path: Path, info: RunInfo, *, resume: bool, max_bytes: int = MAX_QUEUE_BYTES) -> None:
        self.path, self.info = path, info
        self.queue = WriteQueue(max_bytes)
        self.trouble = ""
        """What prevents writing; "" while there is no problem."""
        self.warning = ""
        """The first problem, as a message to the user; it is never cleared."""
        self.last_step: int | None = None
        self.seconds = 0.0
        """Processor time of the thread since it has opened the file, which includes waking up."""
        self._refusal: LeadlineError | None = None
        self._resume, self._owner = resume, current_owner()
        self._axes: dict[str, tuple[str, ...]] = {}
        self._unsaved_axes: set[str] = set()
        self._store: RunStore | None = None
        self._progress = WriteProgress()
        self._requested = self._done = 0
        self._closing = self._ended = False
        self._next, self._retry, self._cost = 0.0, MIN_RETRY_SECONDS, 0.0
        self._tail: TailWriter | None = None
        self.max_tail_seconds = MAX_TAIL_SECONDS
        """Seconds between two transactions while there is a tail."""
        self._next_transaction = 0.0
        self._opened = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leadline run file", daemon=True)
        _THREADS.add(self)

    def leave_to_parent(self) -> None:
        """In a forked child: never close the inherited connection.

        Its locks may be held forever, because the thread that held them does not exist here, and SQLite forbids
        closing it: the file would lose what the parent writes. One reference that nobody drops keeps it open.
        """
        if self._store is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._store.connection))

    @property
    def is_own_process(self) -> bool:
        """False in a forked child, which has this object but not its thread."""
        return os.getpid() == self._owner.pid

    def start(self) -> None:
        """Open the file. Raise what `open_store` refuses; continue without a file that cannot be written now."""
        with contextlib.suppress(OSError):  # opening the file reports what is wrong with the folder
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        self._opened.wait()
        if self._refusal is not None:
            raise self._refusal

    def set_axis(self, name: str, labels: tuple[str, ...]) -> None:
        with self.queue.changed:
            if self._axes.get(name) != labels:
                self._axes[name] = labels
                self._unsaved_axes.add(name)

    def flush(self, max_seconds: float, *, closing: bool = False) -> None:
        """Store everything now, and wait until that was tried."""
        if not self.is_own_process:
            return
        with self.queue.changed:
            self._requested += 1
            request = self._requested
            self._closing = self._closing or closing
            self.queue.changed.notify_all()
            self.queue.changed.wait_for(lambda: self._done >= request or self._ended, max_seconds)

    def _run(self) -> None:
        try:
            self._open()
            self._next = time.monotonic() + MAX_PAUSE_SECONDS
        except LeadlineError as error:
            self._refusal, self._ended = error, True
        except Exception as error:
            self._handle_failure(error)
        finally:
            self._opened.set()
        opened = time.thread_time()
        while not self._ended:
            request, closing = self._wait()
            if request == self._done and self._may_append():
                self._append()
            else:
                self._store_next(request, closing=closing)
            self.seconds = time.thread_time() - opened

    def _may_append(self) -> bool:
        """Whether it suffices to append the new steps to the tail."""
        if self._tail is None or self._tail.is_full or time.monotonic() >= self._next_transaction:
            return False
        return self.queue.has_new and not (self.queue.has_notes or self._unsaved_axes or self.trouble)

    def _append(self) -> None:
        start, steps = time.thread_time(), self.queue.take_new()
        try:
            if self._tail is not None:
                self._tail.append(steps)
            self._pause((time.thread_time() - start) / max(1, sum(len(each.steps) for _, each in steps)))
        except (
            Exception
        ):  # the steps are still in the queue, and a transaction will tell what is wrong with them
            self._close_tail()
            self._next = time.monotonic() + MAX_PAUSE_SECONDS

    def _store_next(self, request: int, *, closing: bool) -> None:
        start = time.thread_time()
        steps = self._try_to_store()
        seconds = time.thread_time() - start
        if steps:
            self._pause(seconds / steps)
            self._next_transaction = time.monotonic() + (0.0 if self._tail is None else self.max_tail_seconds)
        if closing:
            self._release()
        with self.queue.changed:
            self._done = request
            self._ended = self._ended or closing
            self.queue.changed.notify_all()

    def _pause(self, cost: float) -> None:
        """Set the next transaction by the smaller of the last two costs, because a merge of the log takes longer."""
        usual, self._cost = min(cost, self._cost), cost
        self._next = time.monotonic() + min(usual / MAX_TRANSACTION_SHARE, MAX_PAUSE_SECONDS)

    def _wait(self) -> tuple[int, bool]:
        """Wait for a request, for a queued step after the pause, or for the next heartbeat."""
        with self.queue.changed:
            while self._requested == self._done:
                rest = self._next_work() - time.monotonic()
                if rest <= 0:
                    break
                self.queue.changed.wait(rest)
            return self._requested, self._closing

    def _next_work(self) -> float:
        """When there is something to do, by `time.monotonic`."""
        if self.trouble or self.queue.has_new or self.queue.has_notes:
            return self._next
        if len(self.queue):  # all of it is in the tail, unless that has failed
            return self._next if self._tail is None else self._next_transaction
        return self._next + HEARTBEAT_SECONDS

    def _try_to_store(self) -> int:
        """Return how many steps were stored, at least 1; 0 after a failure. Every error ends here."""
        batch = Batch()
        try:
            store = self._store or self._open()
            with self.queue.changed:
                axes = {name: self._axes[name] for name in self._unsaved_axes}
            batch = self.queue.take()
            store.save(batch, axes)
            self._mark_saved(axes)
            self._forget_tail(batch.last_number)
            return max(batch.step_count, 1)
        except TakenOverError:
            self._handle_failure(TakenOverError("another process has taken over the file"))
            self._ended = True
            self._close_tail()
            self.queue.close()
        except (OSError, sqlite3.Error, LeadlineError) as error:
            self.queue.put_back(batch)
            self._handle_failure(error)
        except Exception as error:  # a batch that no file can hold is dropped, because it would fail forever
            self._handle_failure(error)
        return 0

    def _open(self) -> RunStore:
        store = open_store(self.path, self.info, self._owner, resume=self._resume)
        if self._store is None and store.no_wal_reason and not self.warning:
            self._warn(f"{store.no_wal_reason}, so writing waits for readers and costs more")
        store.continue_from(self._progress)
        self.info, self.last_step, self._resume = store.info, store.last_step, True
        self._store = store
        self._open_tail(store)
        return store

    def _open_tail(self, store: RunStore) -> None:
        """Start a tail, except where several machines may write: a file that SQLite cannot share has none."""
        self._close_tail()
        if not store.no_wal_reason:
            with contextlib.suppress(OSError):
                self._tail = TailWriter(self.path, self._owner.token)
                store.has_tail = True

    def _forget_tail(self, stored: int) -> None:
        try:
            if self._tail is not None:
                self._tail.forget(stored)
        except OSError:
            self._close_tail()

    def _close_tail(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _mark_saved(self, axes: dict[str, tuple[str, ...]]) -> None:
        self.trouble, self._retry = "", MIN_RETRY_SECONDS
        with self.queue.changed:
            self._unsaved_axes -= {name for name, labels in axes.items() if self._axes[name] == labels}

    def _handle_failure(self, error: Exception) -> None:
        """Close the file; the next attempt opens it again."""
        self.trouble = str(error)
        self._warn(f"{error}; steps wait in memory as far as they fit, and training continues")
        self._close_store()
        self._next, self._retry = time.monotonic() + self._retry, min(2 * self._retry, MAX_RETRY_SECONDS)
        with self.queue.changed:
            self._unsaved_axes = set(self._axes)

    def _warn(self, problem: str) -> None:
        self.warning = self.warning or f"run file {self.path}: {problem}"

    def _close_store(self) -> None:
        if self._store is not None:
            self._progress = self._store.progress
            self._store.close()
            self._store = None

    def _release(self) -> None:
        with contextlib.suppress(sqlite3.Error, OSError, TakenOverError):
            if self._store is not None:
                self._store.release()
                if self._tail is not None:
                    self._tail.remove()
        self._close_tail()
        self._close_store()
        self.queue.close()


# Heuristic: seconds that `flush` and `close` wait for a slow disk.
MAX_FLUSH_SECONDS = 30.0

Vectors = Mapping[str, tuple[str, "array[float]"]]


class Writer:
    """Appends to a run file.

    Opening a file of another run raises InputError or SchemaError. After that nothing raises, and only `flush` and
    `close` wait for the disk. Problems are in `trouble` and cause one warning. What is left is stored when the writer
    is garbage-collected or the interpreter ends. In a forked child the writer does nothing.
    """

    def __init__(self, path: str | Path, info: RunInfo, *, resume: bool = True) -> None:
        self.path = Path(path)
        self._thread = WriterThread(self.path, info, resume=resume)
        self._thread.start()
        self._has_warned = False
        self._finish = weakref.finalize(self, self._thread.flush, MAX_FLUSH_SECONDS, closing=True)
        self._warn_once()

    @property
    def info(self) -> RunInfo:
        """The RunInfo in the file; a resumed run retains its id and start."""
        return self._thread.info

    @property
    def last_step(self) -> int | None:
        """The last step in the file when it was opened, None if it had none; a resumed run continues after it."""
        return self._thread.last_step

    @property
    def seconds(self) -> float:
        """Processor time of the thread so far; it shares the interpreter's lock with the training loop."""
        return self._thread.seconds

    @property
    def trouble(self) -> str:
        """What prevents the numbers from being stored; "" while there is no problem."""
        return self._thread.trouble

    def slow_down(self, factor: float) -> None:
        """Store steps in the file so many times less often than usual; until then they are in the tail."""
        self._thread.max_tail_seconds = MAX_TAIL_SECONDS * factor

    def axis(self, name: str, labels: Sequence[str]) -> None:
        """Name the labels that vectors run over, in the order of the numbers."""
        if self._thread.is_own_process:
            self._thread.set_axis(name, tuple(labels))

    def put(
        self,
        step: int,
        scalars: Mapping[str, float],
        vectors: Vectors | None = None,
        *,
        when: float | None = None,
    ) -> None:
        """Store the numbers of a step that ended now or at `when`. Further calls may add other metrics to the step."""
        packed = {name: (axis, _pack(values)) for name, (axis, values) in (vectors or {}).items()}
        ended = time.time() if when is None else when
        self._add(StepNumbers(step, ended, {name: float(value) for name, value in scalars.items()}, packed))

    def rows(self, columns: ScalarColumns) -> None:
        """Store the scalars of many steps at once, which costs less than one call per step."""
        if columns.steps:
            self._add(columns)

    def report(self, step: int, text: str) -> None:
        """Store the report of a check at this step, as the JSON of a Report."""
        self._add(Note("report", step, text))

    def alert(self, alert: Alert) -> None:
        self._add(Note("alert", alert.step, note_to_json(alert)))

    def event(self, event: Event) -> None:
        self._add(Note("event", event.step, note_to_json(event)))

    def flush(self, max_seconds: float = MAX_FLUSH_SECONDS) -> None:
        """Wait until everything is in the file, or until storing it has failed, or for so many seconds."""
        self._thread.flush(max_seconds)
        self._warn_once()

    def close(self) -> None:
        """Store what is left and let others write the file. Further calls do nothing."""
        self._finish()
        self._warn_once()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, item: StepNumbers | ScalarColumns | Note) -> None:
        if self._thread.is_own_process:
            self._thread.queue.add(item)
            self._warn_once()

    def _warn_once(self) -> None:
        """Warn in the caller's thread; a filter that turns warnings into errors must not stop the training."""
        if self._thread.warning and not self._has_warned:
            self._has_warned = True
            with contextlib.suppress(Warning):
                warnings.warn(self._thread.warning, stacklevel=3)


def _pack(values: array[float]) -> bytes:
    numbers = values if isinstance(values, array) and values.typecode == "f" else array("f", values)
    if sys.byteorder == "big":  # pragma: no cover  (the tests have no such machine)
        numbers = array("f", numbers)
        numbers.byteswap()
    return numbers.tobytes()
