"""The writer of a run file: takes numbers from the training loop at once, and stores them in a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from leadline.records.run import Alert, Event, RunInfo, note_to_json
from leadline.runs.pending import Note, Pending, Put, Vectors
from leadline.runs.storing import open_store


class Writer:
    """Appends to a run file. After opening, nothing here raises: what goes wrong is in `trouble`."""

    def __init__(self, path: str | Path, info: RunInfo, *, resume: bool = True) -> None:
        self.path = Path(path)
        self.trouble = ""
        self._pending = Pending()
        self._axes: dict[str, tuple[str, ...]] = {}
        self._store = open_store(self.path, info, resume=resume)
        self.info = self._store.info

    @property
    def last_step(self) -> int | None:
        """The last step that the file holds; None if it holds none. A resumed run goes on behind it."""
        return self._store.last_step

    def axis(self, name: str, labels: Sequence[str]) -> None:
        """Name what vectors run over; the labels are in the order of their numbers."""
        self._axes[name] = tuple(labels)

    def put(self, step: int, scalars: Mapping[str, float], vectors: Vectors | None = None) -> None:
        """The numbers of a step. May be called again for the same step with other metrics."""
        packed = {name: (axis, values.tobytes()) for name, (axis, values) in (vectors or {}).items()}
        self._pending.add(Put(step, time.time(), dict(scalars), packed))

    def report(self, step: int, text: str) -> None:
        """A whole check at this step, as the JSON of a Report."""
        self._pending.add(Note("report", step, text))

    def alert(self, alert: Alert) -> None:
        self._pending.add(Note("alert", alert.step, note_to_json(alert)))

    def event(self, event: Event) -> None:
        self._pending.add(Note("event", event.step, note_to_json(event)))

    def flush(self) -> None:
        """Wait until everything is in the file."""
        puts, notes, _ = self._pending.take()
        self._store.save(puts, notes, self._axes)

    def close(self) -> None:
        self.flush()
        self._store.release()
        self._store.close()
