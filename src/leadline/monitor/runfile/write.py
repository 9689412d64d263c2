"""The writer of a run file: takes numbers from the training loop at once; a thread stores them."""

from __future__ import annotations

import contextlib
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
from leadline.monitor.runfile.owner import BEAT_SECONDS, myself
from leadline.monitor.runfile.queue import MOST_BYTES, Batch, Note, Pending, Put, Rows
from leadline.monitor.runfile.store import Past, Store, TakenOverError
from leadline.records.run import Alert, Event, RunInfo, note_to_json

# Steps are stored together only to save what a transaction costs, which is no more than a step does. The pause behind a
# transaction is such that this is a hundredth of the time, so that steps that are slower than it are stored at once.
SHARE = 0.01  # ours, as the default budget of a watch
LONGEST_PAUSE = 0.5  # ours, seconds: a bound on what is lost if the process is killed, however slow the disk
FIRST_RETRY, LAST_RETRY = 1.0, 30.0  # ours, seconds: doubled after each failure


class Keeper:
    """Owns the connection. Others fill `pending` and ask; everything else is done by the thread."""

    def __init__(self, path: Path, info: RunInfo, *, resume: bool, most_bytes: int = MOST_BYTES) -> None:
        self.path, self.info = path, info
        self.pending = Pending(most_bytes)
        self.trouble = ""
        """What keeps it from writing; "" while all is well."""
        self.warning = ""
        """The first trouble, in words for the user; stays."""
        self.last_step: int | None = None
        self.seconds = 0.0
        """Processor time that storing took so far."""
        self.turn_seconds = 0.0
        """Of that, what the last turn took."""
        self._refusal: LeadlineError | None = None
        self._resume, self._owner = resume, myself()
        self._axes: dict[str, tuple[str, ...]] = {}
        self._unsaved: set[str] = set()
        self._store: Store | None = None
        self._past = Past()
        self._asked = self._answered = 0
        self._closing = self._ended = False
        self._next, self._retry, self._cost = 0.0, FIRST_RETRY, 0.0
        self._opened = threading.Event()
        self._thread = threading.Thread(target=self._work, name="leadline run file", daemon=True)

    @property
    def is_mine(self) -> bool:
        """False in a forked child, which has this object and not its thread."""
        return os.getpid() == self._owner.pid

    def start(self) -> None:
        """Opens the file. Raises what `open_store` refuses; goes on without a file if it cannot be written now."""
        with contextlib.suppress(OSError):  # what is wrong with the folder is told by the file
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        self._opened.wait()
        if self._refusal is not None:
            raise self._refusal

    def set_axis(self, name: str, labels: tuple[str, ...]) -> None:
        with self.pending.arrived:
            if self._axes.get(name) != labels:
                self._axes[name] = labels
                self._unsaved.add(name)

    def ask(self, patience: float, *, closing: bool = False) -> None:
        """Have it store all now, and wait until it has tried."""
        if not self.is_mine:
            return
        with self.pending.arrived:
            self._asked += 1
            mine = self._asked
            self._closing = self._closing or closing
            self.pending.arrived.notify_all()
            self.pending.arrived.wait_for(lambda: self._answered >= mine or self._ended, patience)

    def _work(self) -> None:
        try:
            self._open()
        except LeadlineError as error:
            self._refusal, self._ended = error, True
        except Exception as error:
            self._failed(error)
        finally:
            self._opened.set()
        while not self._ended:
            self._turn()

    def _turn(self) -> None:
        asked, closing = self._wait()
        started = time.thread_time()
        steps = self._try()
        took = time.thread_time() - started
        self.seconds += took
        if steps:
            self.turn_seconds = took
            self._pause(took / steps)
        if closing:
            self._release()
        with self.pending.arrived:
            self._answered = asked
            self._ended = self._ended or closing
            self.pending.arrived.notify_all()

    def _pause(self, cost: float) -> None:
        """Of the last two costs the smaller counts: now and then SQLite folds its log into the file, a longer job."""
        usual, self._cost = min(cost, self._cost), cost
        self._next = time.monotonic() + min(usual / SHARE, LONGEST_PAUSE)

    def _wait(self) -> tuple[int, bool]:
        """Until there is something to do: somebody asks, a step waits and the pause is over, or a beat is due."""
        with self.pending.arrived:
            while self._asked == self._answered:
                idle = not (len(self.pending) or self.trouble)
                rest = self._next + (BEAT_SECONDS if idle else 0.0) - time.monotonic()
                if rest <= 0:
                    break
                self.pending.arrived.wait(rest)
            return self._asked, self._closing

    def _try(self) -> int:
        """How many steps were stored, at least 1; 0 if that failed. Whatever is raised ends here."""
        batch = Batch()
        try:
            store = self._store or self._open()
            with self.pending.arrived:
                axes = {name: self._axes[name] for name in self._unsaved}
            batch = self.pending.take()
            store.save(batch, axes)
            self._saved(axes)
            return max(batch.steps, 1)
        except TakenOverError:
            self._failed(TakenOverError("another process has taken the file over"))
            self._ended = True
            self.pending.shut()
        except (OSError, sqlite3.Error, LeadlineError) as error:
            self.pending.give_back(batch)
            self._failed(error)
        except Exception as error:  # a batch that no file can hold: given back, it would fail for ever
            self._failed(error)
        return 0

    def _open(self) -> Store:
        store = open_store(self.path, self.info, self._owner, resume=self._resume)
        if self._store is None and store.without_log and not self.warning:
            self._warn(f"{store.without_log}: writing waits for readers, and costs more")
        store.go_on(self._past)
        self.info, self.last_step, self._resume = store.info, store.last_step, True
        self._store = store
        return store

    def _saved(self, axes: dict[str, tuple[str, ...]]) -> None:
        self.trouble, self._retry = "", FIRST_RETRY
        with self.pending.arrived:
            self._unsaved -= {name for name, labels in axes.items() if self._axes[name] == labels}

    def _failed(self, error: Exception) -> None:
        """Close the file; it is opened again at the next try, for which it may have to come back first."""
        self.trouble = str(error)
        self._warn(f"{error}; steps are kept in memory as far as they fit, and training goes on")
        self._leave()
        self._next, self._retry = time.monotonic() + self._retry, min(2 * self._retry, LAST_RETRY)
        with self.pending.arrived:
            self._unsaved = set(self._axes)

    def _warn(self, why: str) -> None:
        self.warning = self.warning or f"run file {self.path}: {why}"

    def _leave(self) -> None:
        if self._store is not None:
            self._past = self._store.past
            self._store.close()
            self._store = None

    def _release(self) -> None:
        with contextlib.suppress(sqlite3.Error, OSError, TakenOverError):
            if self._store is not None:
                self._store.release()
        self._leave()
        self.pending.shut()


# The writer of a run file: takes numbers from the training loop at once, and has a thread store them.

PATIENCE_SECONDS = 30.0  # ours: how long `flush` and `close` wait for a disk that is slow but not broken

Vectors = Mapping[str, tuple[str, "array[float]"]]


class Writer:
    """Appends to a run file.

    Opening refuses a file that is not this run's: InputError or SchemaError. After that nothing here raises or waits
    for the disk, but `flush` and `close`. What goes wrong is in `trouble`, and is warned of once. What is left is
    stored when the writer is let go or the interpreter ends. In a forked child it does nothing.
    """

    def __init__(self, path: str | Path, info: RunInfo, *, resume: bool = True) -> None:
        self.path = Path(path)
        self._keeper = Keeper(self.path, info, resume=resume)
        self._keeper.start()
        self._has_warned = False
        self._finish = weakref.finalize(self, self._keeper.ask, PATIENCE_SECONDS, closing=True)
        self._warn_once()

    @property
    def info(self) -> RunInfo:
        """As the file has it: a resumed run keeps its id and start."""
        return self._keeper.info

    @property
    def last_step(self) -> int | None:
        """The last step the file held when it was opened; None if none. A resumed run goes on behind it."""
        return self._keeper.last_step

    @property
    def seconds(self) -> float:
        """Processor time that the thread took so far, some of it from whoever shares the interpreter with it."""
        return self._keeper.seconds

    @property
    def turn_seconds(self) -> float:
        """Processor time of its last turn, in which it stored all that waited; 0.0 before the first one."""
        return self._keeper.turn_seconds

    @property
    def trouble(self) -> str:
        """What keeps the numbers from the file; "" while all is well."""
        return self._keeper.trouble

    def axis(self, name: str, labels: Sequence[str]) -> None:
        """Name what vectors run over: the labels in the order of the numbers."""
        self._keeper.set_axis(name, tuple(labels))

    def put(
        self,
        step: int,
        scalars: Mapping[str, float],
        vectors: Vectors | None = None,
        *,
        when: float | None = None,
    ) -> None:
        """The numbers of a step, which ended just now or `when`. May be called again for it with other metrics."""
        packed = {name: (axis, _packed(values)) for name, (axis, values) in (vectors or {}).items()}
        ended = time.time() if when is None else when
        self._add(Put(step, ended, {name: float(value) for name, value in scalars.items()}, packed))

    def rows(self, rows: Rows) -> None:
        """Numbers of many steps at once, where each by itself would cost too much."""
        if rows.steps:
            self._add(rows)

    def report(self, step: int, text: str) -> None:
        """A whole check at this step, as the JSON of a Report."""
        self._add(Note("report", step, text))

    def alert(self, alert: Alert) -> None:
        self._add(Note("alert", alert.step, note_to_json(alert)))

    def event(self, event: Event) -> None:
        self._add(Note("event", event.step, note_to_json(event)))

    def flush(self) -> None:
        """Wait until all is in the file, or it turns out that it cannot be now."""
        self._keeper.ask(PATIENCE_SECONDS)
        self._warn_once()

    def close(self) -> None:
        """Store what is left, and let others write the file. May be called again."""
        self._finish()
        self._warn_once()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, item: Put | Rows | Note) -> None:
        if self._keeper.is_mine:
            self._keeper.pending.add(item)
            self._warn_once()

    def _warn_once(self) -> None:
        """In the caller's thread; a filter that makes errors of warnings must not stop the training."""
        if self._keeper.warning and not self._has_warned:
            self._has_warned = True
            with contextlib.suppress(Warning):
                warnings.warn(self._keeper.warning, stacklevel=3)


def _packed(values: array[float]) -> bytes:
    numbers = values if isinstance(values, array) and values.typecode == "f" else array("f", values)
    if sys.byteorder == "big":  # pragma: no cover  (the tests have no such machine)
        numbers = array("f", numbers)
        numbers.byteswap()
    return numbers.tobytes()
