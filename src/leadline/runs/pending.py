"""What waits to be written: bounded, so that a disk that takes nothing cannot fill the memory."""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

MOST_BYTES = 64 * 2**20  # ours: about 1300 steps of 12 metrics x 1000 layers
MOST_NOTES = (
    1000  # ours: alerts, events and reports are few and are what is wanted most; kept apart from the steps
)
SCALAR_BYTES = 100  # a Python float in a dict, roughly

Vectors = Mapping[str, tuple[str, "array[float]"]]


class Put(msgspec.Struct, frozen=True):
    """The numbers of a step."""

    step: int
    time: float
    scalars: dict[str, float]
    vectors: dict[str, tuple[str, bytes]]

    @property
    def size(self) -> int:
        return SCALAR_BYTES * (len(self.scalars) + 1) + sum(len(blob) for _, blob in self.vectors.values())


class Note(msgspec.Struct, frozen=True):
    """An alert, event or report, as JSON."""

    kind: Literal["alert", "event", "report"]
    step: int
    body: str


class Lost(msgspec.Struct, frozen=True):
    """Steps that were dropped because there was no room for them."""

    count: int = 0
    first: int = 0
    last: int = 0

    def and_step(self, step: int) -> Lost:
        return Lost(self.count + 1, self.first if self.count else step, step)


class Pending:
    """Steps and notes in order of arrival. The oldest are dropped when there is no room, and counted."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._puts: deque[Put] = deque()
        self._notes: deque[Note] = deque(maxlen=MOST_NOTES)
        self._size = 0
        self._lost = Lost()
        self._changed = threading.Condition()

    def add(self, item: Put | Note) -> None:
        with self._changed:
            self._append(item)
            self._changed.notify_all()

    def _append(self, item: Put | Note) -> None:
        if isinstance(item, Note):
            self._notes.append(item)
            return
        self._puts.append(item)
        self._size += item.size
        self._shrink()

    def _shrink(self) -> None:
        while self._size > self._most_bytes:
            put = self._puts.popleft()
            self._size -= put.size
            self._lost = self._lost.and_step(put.step)

    def take(self) -> tuple[list[Put], list[Note], Lost]:
        """All there is; what could not be written is given back."""
        with self._changed:
            taken = list(self._puts), list(self._notes), self._lost
            self._puts.clear()
            self._notes.clear()
            self._size, self._lost = 0, Lost()
            return taken

    def give_back(self, puts: Iterable[Put], notes: Iterable[Note], lost: Lost) -> None:
        """Put in front again what could not be written, as far as there is room."""
        with self._changed:
            since = list(self._puts), list(self._notes)
            self._puts.clear()
            self._notes.clear()
            self._size = 0
            self._lost = Lost(
                lost.count + self._lost.count, lost.first or self._lost.first, self._lost.last or lost.last
            )
            for item in (*puts, *since[0], *notes, *since[1]):
                self._append(item)

    def __bool__(self) -> bool:
        return bool(self._puts or self._notes)

    def __len__(self) -> int:
        return len(self._puts)
