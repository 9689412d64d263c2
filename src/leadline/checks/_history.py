"""The recent past of a training run, bounded in memory: what run checks read."""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import TypeVar

from leadline.records.run import Sample

# Heuristic: eight windows of 128 steps; with about 20 numbers per step they take less than 1 MB.
MAX_STEPS = 1024
# Heuristic: with the spaced recordings, 14 MB at 12,000 parameters and 3 metrics.
MAX_RECENT_RECORDINGS = 32
# Heuristic: recordings of a vector that are kept further apart, so that they reach as far back as the numbers do.
MAX_SPACED_RECORDINGS = 64
# Derived: MAX_STEPS / MAX_SPACED_RECORDINGS steps.
MIN_RECORDING_SPACING = 16
# Heuristic: the first steps of a run, with which a run that makes no progress is compared.
START_STEPS = 32

# Derived: what a negative entry of a vector means. No recorded number is negative; NaN was measured and was NaN.
# In gradient norms: the parameter requires a gradient and got none.
ABSENT = -1.0
# Derived: as above. In gradient norms: the parameter does not require a gradient.
FROZEN = -2.0
# Derived: as above. In gradient norms: the parameter requires a gradient, but no watched optimizer holds it.
NOT_OPTIMIZED = -3.0
# Derived: as above. In vectors over blocks: the block was not measured.
NOT_MEASURED = -1.0

PARAMETER_METRICS = ("grad_norm", "update_norm", "weight_norm")
"""Vectors over parameters."""
HEAD_METRICS = ("head_logit",)
"""Vectors over the heads of all attentions."""
EXPERT_METRICS = ("expert_tokens", "expert_grad_norm")
"""Vectors over the experts of all routers. All other vectors run over blocks."""

T = TypeVar("T")
Recording = tuple[int, "array[float]"]
"""A step, and one number per label of the axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLayout:
    """The names along the axes of a run, and what is known about each parameter."""

    parameters: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    """The heads of all attentions: the module, a space and the number of the head."""
    experts: tuple[str, ...] = ()
    """The experts of all routers: the weight of the router, a space and the number of the expert."""
    parameter_blocks: tuple[int | None, ...] = ()
    """The index of the block that holds each parameter; empty if the depth axis is not known."""
    invariant: tuple[bool, ...] = ()
    """Whether scaling this parameter leaves the function unchanged (`leadline.symmetries`); empty if not known."""
    rotation: tuple[float | None, ...] = ()
    """For each parameter that is scale-invariant and decayed, its equilibrium angle per step at learning rate 1, which
    is proportional to the square root of the rate (`leadline.readings.symmetry.equilibrium`); None for the others;
    empty if not known."""
    settling: tuple[float, ...] = ()
    """Steps in which each of these parameters reaches equilibrium at learning rate 1, which are inversely proportional
    to the rate; empty if not known."""

    def labels(self, metric: str) -> tuple[str, ...]:
        """The names along the axis of a vector."""
        if metric in PARAMETER_METRICS:
            return self.parameters
        if metric in HEAD_METRICS:
            return self.heads
        return self.experts if metric in EXPERT_METRICS else self.blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFiniteOrigin:
    """What made a loss NaN or infinite, read from the autograd graph."""

    op: str
    """The op; "" if the batch or a weight was already non-finite."""
    sentence: str


@dataclass(slots=True)
class ScalarSeries:
    """One number per step: the steps at which it was measured, and its values."""

    steps: deque[int]
    values: deque[float]
    first: list[float] = field(default_factory=list)
    """The first `START_STEPS` values of the run, which stay after the ring has moved on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The last values of one number, oldest first."""

    steps: list[int]
    values: list[float]

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recordings:
    """The last recordings of a vector, oldest first; each row has one number per label."""

    steps: list[int]
    rows: list[array[float]]

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, index: int) -> list[float]:
        return [row[index] for row in self.rows]


@dataclass(slots=True)
class VectorSeries:
    """Recordings of one vector: the most recent ones, and others that are spaced out over the history."""

    recent: deque[Recording]
    spaced: deque[Recording]

    def realign(self, positions: Sequence[int | None], missing: float) -> None:
        """Rearrange all rows for a new axis, with `missing` where a label has no earlier position."""
        for ring in (self.recent, self.spaced):
            realigned = [(step, realigned_row(row, positions, missing)) for step, row in ring]
            ring.clear()
            ring.extend(realigned)


class History:
    """The last `MAX_STEPS` values of each number, and recordings of each vector: the last `MAX_RECENT_RECORDINGS`, and
    `MAX_SPACED_RECORDINGS` further ones that are at least `MIN_RECORDING_SPACING` steps apart.

    A step that does not come after the last one means that the run was resumed or restarted from an earlier point. The
    history then belongs to steps that will be repeated, so it is cleared.
    """

    def __init__(self, layout: RunLayout | None = None, *, ranks: int = 1) -> None:
        self.layout = layout or RunLayout()
        self.ranks = ranks
        """Processes that train together: they share gradients, but each has its own loss."""
        self._scalars: dict[str, ScalarSeries] = {}
        self._vectors: dict[str, VectorSeries] = {}
        self.step: int | None = None
        """The last step; None before the first one."""
        self.first_step: int | None = None
        """The first step that was added, even if the ring no longer holds it."""
        self.last_check_step: int | None = None
        """The last step at which run checks looked at this history."""
        self.skips_non_finite = False
        """Whether an intervention skips steps with non-finite gradients."""
        self.non_finite_origins: dict[int, NonFiniteOrigin] = {}
        """By step, what made its loss non-finite."""

    def add(self, sample: Sample) -> None:
        if self.step is not None and sample.step <= self.step:
            self.clear()
        self.first_step = sample.step if self.first_step is None else self.first_step
        self.step = sample.step
        for name, value in sample.scalars.items():
            self._add_scalar(name, sample.step, float(value))
        for name, row in sample.vectors.items():
            self._add_vector(name, sample.step, row if isinstance(row, array) else array("f", row))

    def add_rows(self, steps: Sequence[int], scalars: Mapping[str, Sequence[float | None]]) -> None:
        """Add many steps at once that have only numbers of the whole model; None where one was not measured."""
        if not steps:
            return
        if self.step is not None and steps[0] <= self.step:
            self.clear()
        self.first_step = steps[0] if self.first_step is None else self.first_step
        self.step = steps[-1]
        for name, values in scalars.items():
            for step, value in zip(steps, values, strict=True):
                if value is not None:
                    self._add_scalar(name, step, value)

    def set_layout(self, layout: RunLayout) -> None:
        """Use these axes from now on, and move earlier recordings to them by label.

        The axes change when a model grows or an optimizer gets more parameters.
        """
        known, self.layout = self.layout, layout
        for name, series in self._vectors.items():
            before, now = known.labels(name), layout.labels(name)
            if before != now:
                missing = FROZEN if name in PARAMETER_METRICS else NOT_MEASURED
                series.realign(label_positions(before, now), missing)

    def extend(self, samples: Iterable[Sample]) -> History:
        for sample in samples:
            self.add(sample)
        return self

    def clear(self) -> None:
        self._scalars.clear()
        self._vectors.clear()
        self.non_finite_origins.clear()
        self.step = self.first_step = self.last_check_step = None

    def scalars(self, name: str, last: int | None = None) -> Window:
        """The last values of a number, NaN included; empty if it was never measured."""
        series = self._scalars.get(name)
        if series is None:
            return Window(steps=[], values=[])
        return Window(steps=_last(series.steps, last), values=_last(series.values, last))

    def steps_since_check(self, name: str) -> list[int]:
        """Steps at which a number was measured since run checks last looked, oldest first; empty before their first
        look."""
        series, checked = self._scalars.get(name), self.last_check_step
        if series is None or checked is None:
            return []
        return [*takewhile(lambda step: step > checked, reversed(series.steps))][::-1]

    def recent(self, name: str) -> Recordings:
        """The last recordings of a vector; empty if it was never measured."""
        series = self._vectors.get(name)
        return _recordings(series.recent if series else ())

    def spaced(self, name: str) -> Recordings:
        """Recordings of a vector spaced out over the whole history; empty if it was never measured."""
        series = self._vectors.get(name)
        return _recordings(series.spaced if series else ())

    def latest(self, name: str) -> float | None:
        """The last value of a number; None if it was never measured."""
        series = self._scalars.get(name)
        return series.values[-1] if series and series.values else None

    def has(self, name: str) -> bool:
        """Whether a number or vector of this name was ever recorded."""
        return name in self._scalars or name in self._vectors

    def start(self, name: str) -> Sequence[float]:
        """The finite ones among the first `START_STEPS` values of the run."""
        series = self._scalars.get(name)
        return [each for each in series.first if math.isfinite(each)] if series else []

    def _add_scalar(self, name: str, step: int, value: float) -> None:
        series = self._scalars.get(name)
        if series is None:
            series = ScalarSeries(steps=deque(maxlen=MAX_STEPS), values=deque(maxlen=MAX_STEPS))
            self._scalars[name] = series
        series.steps.append(step)
        series.values.append(value)
        if len(series.first) < START_STEPS:
            series.first.append(value)

    def _add_vector(self, name: str, step: int, row: array[float]) -> None:
        series = self._vectors.get(name)
        if series is None:
            series = VectorSeries(
                recent=deque(maxlen=MAX_RECENT_RECORDINGS), spaced=deque(maxlen=MAX_SPACED_RECORDINGS)
            )
            self._vectors[name] = series
        series.recent.append((step, row))
        if not series.spaced or step - series.spaced[-1][0] >= MIN_RECORDING_SPACING:
            series.spaced.append((step, row))


def label_positions(before: Sequence[str], now: Sequence[str]) -> list[int | None]:
    """For each label of an axis its position on the earlier axis; None if it is new. Equal labels match in order."""
    occurrences: Counter[str] = Counter()
    known = {}
    for position, label in enumerate(before):
        known[label, occurrences[label]] = position
        occurrences[label] += 1
    occurrences.clear()
    positions = []
    for label in now:
        positions.append(known.get((label, occurrences[label])))
        occurrences[label] += 1
    return positions


def realigned_row(row: array[float], positions: Sequence[int | None], missing: float) -> array[float]:
    return array("f", [missing if at is None or at >= len(row) else row[at] for at in positions])


def _recordings(ring: Iterable[Recording]) -> Recordings:
    pairs = list(ring)
    return Recordings(steps=[step for step, _ in pairs], rows=[row for _, row in pairs])


def _last(ring: deque[T], count: int | None) -> list[T]:
    """The last ones, oldest first, without walking through the others."""
    return list(ring) if count is None else [*islice(reversed(ring), count)][::-1]
