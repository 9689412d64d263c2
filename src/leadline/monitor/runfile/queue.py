"""What waits to be written: bounded, so that a disk that takes nothing cannot fill the memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Literal

import msgspec

MOST_BYTES = 64 * 2**20  # ours: about 1300 steps of 12 metrics x 1000 layers
MOST_NOTES = (
    1000  # ours: alerts, events and reports are few and wanted most, so they have a bound of their own
)
SCALAR_BYTES = 100  # a Python float in a dict, roughly


class Put(msgspec.Struct, frozen=True):
    """The numbers of a step; vectors as name -> (axis, float32 in little-endian order)."""

    step: int
    time: float
    scalars: dict[str, float]
    vectors: dict[str, tuple[str, bytes]]

    @property
    def size(self) -> int:
        return SCALAR_BYTES * (len(self.scalars) + 1) + sum(len(blob) for _, blob in self.vectors.values())

    @property
    def steps(self) -> tuple[int, ...]:
        return (self.step,)


class Rows(msgspec.Struct, frozen=True):
    """Numbers of many steps, in order, that are worth little each: one column a metric, None where there is none."""

    steps: tuple[int, ...]
    times: tuple[float, ...]
    scalars: dict[str, tuple[float | None, ...]]

    @property
    def size(self) -> int:
        return SCALAR_BYTES * len(self.steps) * (len(self.scalars) + 1)

    def apart(self) -> Iterator[Put]:
        """One by one."""
        for at, (step, time) in enumerate(zip(self.steps, self.times, strict=True)):
            numbers = {name: values[at] for name, values in self.scalars.items()}
            yield Put(step, time, {name: each for name, each in numbers.items() if each is not None}, {})


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

    def __add__(self, other: Lost) -> Lost:
        """This, and what was lost after it."""
        if not (self.count and other.count):
            return self if self.count else other
        return Lost(self.count + other.count, self.first, other.last)


class Batch(msgspec.Struct, frozen=True):
    """All that waited at one moment."""

    puts: tuple[Put | Rows, ...] = ()
    notes: tuple[Note, ...] = ()
    lost: Lost = Lost()

    def __bool__(self) -> bool:
        return bool(self.puts or self.notes)

    @property
    def steps(self) -> int:
        return sum(len(put.steps) for put in self.puts)


class Pending:
    """Steps and notes in order of arrival. The oldest are dropped when there is no room, and counted."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.arrived = threading.Condition()
        """Told when something comes in."""
        self._most_bytes = most_bytes
        self._puts: deque[Put | Rows] = deque()
        self._notes: deque[Note] = deque(maxlen=MOST_NOTES)
        self._size = 0
        self._lost = Lost()
        self._is_shut = False

    def shut(self) -> None:
        """Nobody will write any more: what is there is let go, and nothing is taken in."""
        self.take()
        self._is_shut = True

    def add(self, item: Put | Rows | Note) -> None:
        with self.arrived:
            if self._is_shut:
                return
            if isinstance(item, Note):
                self._notes.append(item)
            else:
                self._puts.append(item)
                self._size += item.size
                self._make_room()
            if len(self) == 1:  # or the thread knows already, and wakes when its pause is over
                self.arrived.notify_all()

    def _make_room(self) -> None:
        while self._size > self._most_bytes:
            put = self._puts.popleft()
            self._size -= put.size
            self._lost += Lost(len(put.steps), put.steps[0], put.steps[-1])

    def take(self) -> Batch:
        """All there is. What cannot be written is to be given back."""
        with self.arrived:
            batch = Batch(tuple(self._puts), tuple(self._notes), self._lost)
            self._puts.clear()
            self._notes.clear()
            self._size, self._lost = 0, Lost()
            return batch

    def give_back(self, batch: Batch) -> None:
        """Puts a batch in front of what came since, as far as there is room."""
        with self.arrived:
            self._puts.extendleft(reversed(batch.puts))
            self._notes = deque((*batch.notes, *self._notes), maxlen=MOST_NOTES)
            self._size += sum(put.size for put in batch.puts)
            self._lost = batch.lost + self._lost
            self._make_room()

    def __len__(self) -> int:
        return len(self._puts) + len(self._notes)
