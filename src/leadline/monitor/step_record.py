"""One training step in progress: its loss, learning rate, closures and measurements."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

from torch import Tensor

from leadline.monitor.block_exits import Glance
from leadline.monitor.budget import Level
from leadline.monitor.clipping import RawGradients
from leadline.monitor.parameters import Gauges
from leadline.monitor.runfile.queue import Rows
from leadline.records import Trace


@dataclass(slots=True)
class Round:
    """One step under way."""

    step: int
    level: Level
    gauges: Gauges
    began: float | None
    """None for the first step: nobody knows when it began."""
    seconds: float = 0.0
    plain: float = 0.0
    """Seconds without ours."""
    telling: float = 0.0
    """Seconds that it took to be told of losses: part of every step, whatever its level."""
    read: float = 0.0
    """Seconds of reading the trace, which are among the costs of tracing."""
    losses: list[Tensor | float] = field(default_factory=list)
    unclipped: list[Tensor | float] = field(default_factory=list)
    """Gradient norms before they were clipped, one an optimiser."""
    costs: dict[Level, float] = field(default_factory=dict)
    """Seconds of our own."""
    stepped: set[int] = field(default_factory=set)
    trace: Trace | None = None
    glance: Glance | None = None
    raw: RawGradients | None = None
    clipped: float | None = None

    def took(self, level: Level, since: float) -> float:
        """Note the time since then as a cost of this level; returns what time it is."""
        now = perf_counter()
        self.costs[level] = self.costs.get(level, 0.0) + now - since
        return now

    @property
    def ready(self) -> bool:
        """Nothing that was measured is still on its way from a device."""
        told = all(not isinstance(each, Tensor) for each in self.losses)
        return told and self.gauges.ready and (self.glance is None or self.glance.ready)

    @property
    def own(self) -> float:
        return sum(self.costs.values()) + self.telling


# Closures that an optimiser is given: they make the gradients, and often the loss, while the step is under way.

Call = tuple[tuple[Any, ...], dict[str, Any]]


def with_closure(call: Call, ran: Callable[[Any], None]) -> Call | None:
    """The call with its closure wrapped: `ran` is told what its first run returned. None if there is no closure."""
    args, kwargs = call
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not callable(closure):
        return None
    wrapped = _telling(closure, ran)
    if "closure" in kwargs:
        return args, kwargs | {"closure": wrapped}
    return (args[0], wrapped, *args[2:]), kwargs


def _telling(closure: Callable[[], Any], ran: Callable[[Any], None]) -> Callable[[], Any]:
    untold = [True]

    def run() -> Any:
        found = closure()
        if untold:
            untold.clear()
            ran(found)
        return found

    return run


# The least of every step, its loss and learning rate: kept whatever the budget, and handed over together.
#
# Whoever reads a run wants its loss without gaps, on the fastest loop too. So this is not bought from the
# budget, and is
# as cheap as can be: three appends a step. Everything that costs more is done for many steps at once.

MOST = 1024  # steps that wait at most; ours: as many as the history holds
Losses = Sequence[Tensor | float]


class Tally:
    """Steps that nobody looked at more closely, in order."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, float, Losses, float | None, float]] = []
        self._counted = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def is_full(self) -> bool:
        return len(self._rows) >= MOST

    def add(self, step: int, now: float, losses: Losses, rate: float | None, own: float = 0.0) -> None:
        """A step that ended at this moment, by `perf_counter`, and of which so many seconds were ours."""
        self._rows.append((step, now, losses, rate, own))

    def mark(self) -> None:
        """What there is was entered into the account, or will be otherwise."""
        self._counted = len(self._rows)

    def since_mark(self, began: float | None) -> tuple[list[float], float]:
        """What each step took since the last mark without ours, of which the first one began then; and what ours took.

        Ours is counted by its median: a few microseconds that now and then include milliseconds of another process.
        """
        rows = self._rows[self._counted :]
        starts = [rows[0][1] if began is None else began, *(row[1] for row in rows[:-1])] if rows else []
        self.mark()
        took = [max(0.0, row[1] - start - row[4]) for start, row in zip(starts, rows, strict=True)]
        return took, len(rows) * median(row[4] for row in rows) if rows else 0.0

    def take(self, *, ready: bool = False) -> Rows:
        """All that waited. With `ready`, not the last step if a device may still be at work on its loss."""
        size = len(self._rows) - (ready and _is_coming(self._rows[-1][2]))
        taken, self._rows = self._rows[:size], self._rows[size:]
        self._counted = max(0, self._counted - size)
        steps, ends, losses, rates, _ = zip(*taken, strict=True) if taken else ((), (), (), (), ())
        since = time.time() - time.perf_counter()
        columns = {"loss": tuple(map(mean, losses)), "lr": rates}
        times = tuple(since + each for each in ends)
        return Rows(steps, times, {name: each for name, each in columns.items() if each.count(None) < size})


def _is_coming(losses: Losses) -> bool:
    return any(isinstance(each, Tensor) for each in losses)


def number(loss: Tensor | float) -> Tensor | float:
    """A float where that costs no wait; else a tensor of its own, off the graph."""
    if type(loss) is Tensor and loss.is_cpu and loss.numel() == 1:
        return float(loss.item())
    if not isinstance(loss, Tensor):
        return float(loss)
    found = loss.detach().mean()
    return float(found) if loss.device.type == "cpu" else found


def mean(losses: Losses) -> float | None:
    """Of the micro-batches of a step; None if no loss was told."""
    return sum(float(each) for each in losses) / len(losses) if losses else None
