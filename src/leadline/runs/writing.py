"""The writer of a run file: takes numbers from the training loop at once, and has a thread store them."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
import weakref
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

from leadline.records.run import Alert, Event, RunInfo, note_to_json
from leadline.runs.keeping import Keeper
from leadline.runs.pending import Note, Put, Rows

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
