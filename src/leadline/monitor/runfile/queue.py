"""The queue of steps and notes to be written: bounded, so that a full disk cannot fill the memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Literal

import msgspec

# Heuristic: bytes of queued steps; about 1300 steps of 12 metrics over 1000 layers.
MAX_QUEUE_BYTES = 64 * 2**20
# Heuristic: alerts, events and reports are few and matter most, so they have their own limit.
MAX_QUEUED_NOTES = 1000
# Heuristic: rough size of a Python float in a dict.
SCALAR_BYTES = 100


class StepNumbers(msgspec.Struct, frozen=True, tag=True):
    """The numbers of one step; vectors as name -> (axis, little-endian float32)."""

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


class ScalarColumns(msgspec.Struct, frozen=True, tag=True):
    """Scalars of many steps in order: one column per metric, None where a value is missing."""

    steps: tuple[int, ...]
    times: tuple[float, ...]
    scalars: dict[str, tuple[float | None, ...]]

    @property
    def size(self) -> int:
        return SCALAR_BYTES * len(self.steps) * (len(self.scalars) + 1)

    def split(self) -> Iterator[StepNumbers]:
        """Yield the steps one by one."""
        for index, (step, time) in enumerate(zip(self.steps, self.times, strict=True)):
            numbers = {name: values[index] for name, values in self.scalars.items()}
            known = {name: each for name, each in numbers.items() if each is not None}
            yield StepNumbers(step, time, known, {})


NumberedSteps = tuple[int, StepNumbers | ScalarColumns]


class Note(msgspec.Struct, frozen=True):
    """An alert, event or report, as JSON."""

    kind: Literal["alert", "event", "report"]
    step: int
    body: str


class DroppedSteps(msgspec.Struct, frozen=True):
    """Steps that were dropped because the queue was full."""

    count: int = 0
    first: int = 0
    last: int = 0

    def __add__(self, later: DroppedSteps) -> DroppedSteps:
        """Return these steps and `later` ones together."""
        if not (self.count and later.count):
            return self if self.count else later
        return DroppedSteps(self.count + later.count, self.first, later.last)


class Batch(msgspec.Struct, frozen=True):
    """Everything that was queued at one moment."""

    steps: tuple[StepNumbers | ScalarColumns, ...] = ()
    notes: tuple[Note, ...] = ()
    dropped: DroppedSteps = DroppedSteps()
    last_number: int = 0
    """The number of the last item of steps that was queued until then."""

    def __bool__(self) -> bool:
        return bool(self.steps or self.notes)

    @property
    def step_count(self) -> int:
        return sum(len(each.steps) for each in self.steps)


class WriteQueue:
    """Steps and notes in order of arrival. When it is full, the oldest steps are dropped and counted."""

    def __init__(self, max_bytes: int = MAX_QUEUE_BYTES) -> None:
        self.changed = threading.Condition()
        """Notified when the queue is no longer empty."""
        self._max_bytes = max_bytes
        self._steps: deque[StepNumbers | ScalarColumns] = deque()
        self._notes: deque[Note] = deque(maxlen=MAX_QUEUED_NOTES)
        self._size = 0
        self._dropped = DroppedSteps()
        self._last_number = 0
        self._new: list[NumberedSteps] = []
        """Steps that were queued since `take` and `take_new`."""
        self._is_closed = False

    def close(self) -> None:
        """Discard what is queued and accept nothing more, because no writer will take it."""
        self.take()
        self._is_closed = True

    def add(self, item: StepNumbers | ScalarColumns | Note) -> None:
        with self.changed:
            if self._is_closed:
                return
            if isinstance(item, Note):
                self._notes.append(item)
            else:
                self._steps.append(item)
                self._size += item.size
                self._last_number += 1
                self._new.append((self._last_number, item))
                self._drop_oldest()
            if len(self._new) + len(self._notes) == 1:  # otherwise the thread knows and wakes after its pause
                self.changed.notify_all()

    def _drop_oldest(self) -> None:
        while self._size > self._max_bytes:
            oldest = self._steps.popleft()
            del self._new[: max(0, len(self._new) - len(self._steps))]
            self._size -= oldest.size
            self._dropped += DroppedSteps(len(oldest.steps), oldest.steps[0], oldest.steps[-1])

    def take(self) -> Batch:
        """Remove and return everything; `put_back` returns what could not be written."""
        with self.changed:
            batch = Batch(tuple(self._steps), tuple(self._notes), self._dropped, self._last_number)
            self._steps.clear()
            self._new.clear()
            self._notes.clear()
            self._size, self._dropped = 0, DroppedSteps()
            return batch

    def take_new(self) -> list[NumberedSteps]:
        """Return the steps that were queued since the last call, and leave them in the queue."""
        with self.changed:
            new, self._new = self._new, []
            return new

    @property
    def has_new(self) -> bool:
        return bool(self._new)

    @property
    def has_notes(self) -> bool:
        return bool(self._notes)

    def put_back(self, batch: Batch) -> None:
        """Put a batch in front of what arrived since, as far as there is room."""
        with self.changed:
            self._steps.extendleft(reversed(batch.steps))
            self._notes = deque((*batch.notes, *self._notes), maxlen=MAX_QUEUED_NOTES)
            self._size += sum(each.size for each in batch.steps)
            self._dropped = batch.dropped + self._dropped
            self._drop_oldest()

    def __len__(self) -> int:
        return len(self._steps) + len(self._notes)
