"""The recent past of a run, bounded: what alarms look at."""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import TypeVar

from leadline.records.run import Sample

STEPS = 1024  # ours: eight windows of 128 steps; about 20 numbers a step, so under 1 MB
SPACED = 64  # recordings of a vector kept at least SPACING steps apart: they reach as far back as the numbers
SPACING = 16  # derived: STEPS / SPACED
RECENT = 32  # last recordings of a vector; with the spaced ones 14 MB at 12,000 parameters and 3 metrics
ABSENT = (
    -1.0
)  # in a vector of gradient norms: asked for, and did not come; no norm is negative, NaN is a measured NaN
FROZEN = -2.0  # in a vector of gradient norms: not asked for, the parameter requires none
UNHELD = -3.0  # in a vector of gradient norms: it requires one, and no optimiser that is watched holds it
UNKNOWN = -1.0  # in a vector over blocks: not measured; none of these numbers is negative
PER_PARAMETER = (
    "grad_norm",
    "update_norm",
    "weight_norm",
)  # vectors over parameters; all others run over blocks
START = 32  # ours: steps that make up "the start", with which a run that goes nowhere is compared


T = TypeVar("T")
Row = tuple[int, "array[float]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What does not change during a run: names along the two axes, and what is known of each parameter."""

    parameters: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    homes: tuple[int | None, ...] = ()
    """The block of each parameter; empty if the depth axis is not known."""
    invariant: tuple[bool, ...] = ()
    """Whether the network computes the same if this parameter is scaled (`leadline.symmetries`); empty if not known."""
    rotation: tuple[float | None, ...] = ()
    """For each parameter that is scale-invariant and decayed, its angle a step in equilibrium at rate 1, which goes
    with the root of the rate (`leadline.readings.symmetry.equilibrium`); None for the others; empty if not known."""
    settling: tuple[float, ...] = ()
    """Steps in which each of these gets there at rate 1, which go with one over the rate; empty if not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """What made a loss that is no number, where somebody saw it."""

    op: str
    """"" if no op did, but the batch or a weight brought it in."""
    sentence: str


@dataclass(slots=True)
class Series:
    """One number a step: the steps at which it was measured, and its values."""

    steps: deque[int]
    values: deque[float]
    first: list[float] = field(default_factory=list)
    """The first `START` values of the run; they stay when the ring has moved on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The last values of one number, oldest first."""

    steps: list[int]
    values: list[float]

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The last recordings of a vector, oldest first; each has one number a label."""

    steps: list[int]
    rows: list[array[float]]

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, index: int) -> list[float]:
        return [row[index] for row in self.rows]


@dataclass(slots=True)
class Shelf:
    """Recordings of one vector: the last ones, and some that are spaced out."""

    recent: deque[Row]
    spaced: deque[Row]

    def move(self, places: Sequence[int | None], missing: float) -> None:
        """Rows on another axis: which of their numbers comes where, and what stands for those they lack."""
        for ring in (self.recent, self.spaced):
            moved = [(step, moved_row(row, places, missing)) for step, row in ring]
            ring.clear()
            ring.extend(moved)


class History:
    """A ring of recent steps: the last `STEPS` values of each number; of each vector the last `RECENT` recordings, and
    `SPACED` further ones at least `SPACING` steps apart.

    A step that does not come after the last one is a run that went back (a resumed or restarted one): what was
    remembered is of another future, and is forgotten.
    """

    def __init__(self, layout: Layout | None = None, *, ranks: int = 1) -> None:
        self.layout = layout or Layout()
        self.ranks = ranks
        """Processes that train together: they share gradients, and each has a loss of its own."""
        self._series: dict[str, Series] = {}
        self._shelves: dict[str, Shelf] = {}
        self.step: int | None = None
        """The last step; None: nothing was added yet."""
        self.began: int | None = None
        """The first step that was added, though the ring may no longer hold it."""
        self.asked: int | None = None
        """The last step at which alarms were asked."""
        self.guarded = False
        """Steps by numbers that are none are not made: something leaves them out."""
        self.blamed: dict[int, Blame] = {}
        """What made the loss of a step a number that is none."""

    def add(self, sample: Sample) -> None:
        if self.step is not None and sample.step <= self.step:
            self.forget()
        self.began = sample.step if self.began is None else self.began
        self.step = sample.step
        for name, value in sample.scalars.items():
            self._note(name, sample.step, float(value))
        for name, row in sample.vectors.items():
            self._keep(name, sample.step, row if isinstance(row, array) else array("f", row))

    def add_rows(self, steps: Sequence[int], scalars: Mapping[str, Sequence[float | None]]) -> None:
        """Many steps at once that have nothing but numbers of the whole model; None where there is none."""
        if not steps:
            return
        if self.step is not None and steps[0] <= self.step:
            self.forget()
        self.began = steps[0] if self.began is None else self.began
        self.step = steps[-1]
        for name, values in scalars.items():
            for step, value in zip(steps, values, strict=True):
                if value is not None:
                    self._note(name, step, value)

    def lay_out(self, layout: Layout) -> None:
        """The axes are these from now on. What was recorded on others is moved to its place by name: a model may grow,
        and an optimiser may get more parameters."""
        known, self.layout = self.layout, layout
        for name, shelf in self._shelves.items():
            own = name in PER_PARAMETER
            before, now = (known.parameters, layout.parameters) if own else (known.blocks, layout.blocks)
            if before != now:
                shelf.move(places(before, now), FROZEN if own else UNKNOWN)

    def extend(self, samples: Iterable[Sample]) -> History:
        for sample in samples:
            self.add(sample)
        return self

    def forget(self) -> None:
        self._series.clear()
        self._shelves.clear()
        self.blamed.clear()
        self.step = self.began = self.asked = None

    def scalars(self, name: str, last: int | None = None) -> Window:
        """The last values of a number, NaN included; empty if it was never measured."""
        found = self._series.get(name)
        if found is None:
            return Window(steps=[], values=[])
        return Window(steps=_last(found.steps, last), values=_last(found.values, last))

    def since_asked(self, name: str) -> list[int]:
        """Steps at which a number was measured since alarms were asked last, oldest first; none if they never were."""
        found, asked = self._series.get(name), self.asked
        if found is None or asked is None:
            return []
        return [*takewhile(lambda step: step > asked, reversed(found.steps))][::-1]

    def recent(self, name: str) -> Rows:
        """The last recordings of a vector; empty if it was never measured."""
        shelf = self._shelves.get(name)
        return _rows(shelf.recent if shelf else ())

    def spaced(self, name: str) -> Rows:
        """Recordings of a vector over all the history, some steps apart; empty if it was never measured."""
        shelf = self._shelves.get(name)
        return _rows(shelf.spaced if shelf else ())

    def latest(self, name: str) -> float | None:
        """The last value of a number; None if it was never measured."""
        found = self._series.get(name)
        return found.values[-1] if found and found.values else None

    def has(self, name: str) -> bool:
        """Whether a number or vector of this name was ever recorded."""
        return name in self._series or name in self._shelves

    def start(self, name: str) -> Sequence[float]:
        """The first values of the run, at most `START`; finite ones only."""
        found = self._series.get(name)
        return [each for each in found.first if math.isfinite(each)] if found else []

    def _note(self, name: str, step: int, value: float) -> None:
        found = self._series.get(name)
        if found is None:
            found = Series(steps=deque(maxlen=STEPS), values=deque(maxlen=STEPS))
            self._series[name] = found
        found.steps.append(step)
        found.values.append(value)
        if len(found.first) < START:
            found.first.append(value)

    def _keep(self, name: str, step: int, row: array[float]) -> None:
        shelf = self._shelves.get(name)
        if shelf is None:
            shelf = self._shelves[name] = Shelf(recent=deque(maxlen=RECENT), spaced=deque(maxlen=SPACED))
        shelf.recent.append((step, row))
        if not shelf.spaced or step - shelf.spaced[-1][0] >= SPACING:
            shelf.spaced.append((step, row))


def places(before: Sequence[str], now: Sequence[str]) -> list[int | None]:
    """For each label of an axis its place on the axis before; None if it is new. Equal names are told by order."""
    seen: Counter[str] = Counter()
    known = {}
    for place, label in enumerate(before):
        known[label, seen[label]] = place
        seen[label] += 1
    seen.clear()
    found = []
    for label in now:
        found.append(known.get((label, seen[label])))
        seen[label] += 1
    return found


def moved_row(row: array[float], places: Sequence[int | None], missing: float) -> array[float]:
    return array("f", [missing if at is None or at >= len(row) else row[at] for at in places])


def _rows(kept: Iterable[Row]) -> Rows:
    pairs = list(kept)
    return Rows(steps=[step for step, _ in pairs], rows=[row for _, row in pairs])


def _last(ring: deque[T], count: int | None) -> list[T]:
    """The last ones, oldest first, without walking through the others."""
    return list(ring) if count is None else [*islice(reversed(ring), count)][::-1]
