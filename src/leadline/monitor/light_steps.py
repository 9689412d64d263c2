"""Light steps: those of which only the loss and the learning rate are recorded.

They cost as little as possible: three appends per step, and everything else is done for many steps at once. Where steps
are short, the losses of some are left out; see `leadline.monitor.budget`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass, field

from torch import Tensor
from torch.optim import Optimizer

from leadline.checks._history import MAX_STEPS
from leadline.monitor.runfile.queue import ScalarColumns
from leadline.monitor.step_losses import Losses, is_on_device, largest, mean_loss, receive
from leadline.monitor.step_record import StepRecord
from leadline.tracer.stats import Known, transfer

# Derived: more light steps than the history holds need not wait.
MAX_LIGHT_STEPS = MAX_STEPS
Rate = float | Losses | None
"""A learning rate, or those of all groups, of which the largest is recorded."""


@dataclass(frozen=True, slots=True)
class UnchargedSteps:
    """Light steps that are not charged to the budget yet."""

    training: list[tuple[float, int, float]] = field(default_factory=list)
    """Seconds from one recorded step to the next without the watch, the number of steps in that time, and the seconds
    of the last of them."""
    watching: list[float] = field(default_factory=list)
    """Seconds that were timed within the watch, of each recorded step."""

    @property
    def count(self) -> int:
        """All steps, recorded or not."""
        return sum(count for _, count, _ in self.training)


class LightSteps:
    """Steps of which only loss and learning rate are recorded, in order, until they are handed over together."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, float, Losses, Rate, float]] = []
        """Step, end, losses, learning rate and seconds of the watch, as `add` is given them."""
        self.starts: dict[int, float] = {}
        """By step that follows skipped ones, when it began."""
        self._loop: dict[int, dict[str, float]] = {}
        """By step, the numbers of the loop ledger that changed."""
        self._taken: list[tuple[int, float, float]] = []
        """Step, end and seconds of the watch of rows that were taken before they were charged to the budget."""
        self._charged = self._next_step = 0
        """Rows that are charged, and the step after them."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= MAX_LIGHT_STEPS

    def add(self, step: int, end: float, losses: Losses, rate: Rate, watch_seconds: float = 0.0) -> None:
        """Add a step that ended at `end` by `perf_counter`, of which the watch took `watch_seconds`."""
        self.rows.append((step, end, losses, rate, watch_seconds))

    def add_loop(self, step: int, numbers: dict[str, float]) -> None:
        """Add numbers of the loop ledger to a step that was added."""
        self._loop[step] = numbers

    def mark_charged(self, next_step: int) -> None:
        """Note that all steps before this one are charged to the budget, or will be elsewhere."""
        self._charged, self._next_step = len(self.rows), next_step
        self._taken.clear()
        self.starts.clear()

    def charge(self, start: float | None) -> UnchargedSteps:
        """Return the steps that are not charged yet, of which the first began at `start`, and mark them as charged."""
        uncharged = UnchargedSteps()
        for step, end, watch_seconds in self._uncharged(len(self.rows)):
            seconds = 0.0 if start is None else max(0.0, end - start - watch_seconds)
            count, begin = step + 1 - self._next_step, self.starts.get(step)
            last = seconds / count if begin is None else max(0.0, end - begin - watch_seconds)
            uncharged.training.append((seconds, count, last))
            uncharged.watching.append(watch_seconds)
            start, self._next_step = end, step + 1
        self.mark_charged(self._next_step)
        return uncharged

    def _uncharged(self, size: int) -> list[tuple[int, float, float]]:
        """Step, end and seconds of the watch of the rows that are not charged, up to so many that are not taken."""
        rows = self.rows[self._charged : size]
        return self._taken + [(step, end, seconds) for step, end, _, _, seconds in rows]

    def pending(self) -> list[Tensor]:
        """Losses and learning rates that were not read yet."""
        numbers = [each for row in self.rows for each in (*row[2], *_rates(row[3]))]
        return [each for each in numbers if isinstance(each, Tensor)]

    def receive(self, known: Known) -> None:
        """Take all pending numbers from what was transferred."""
        self.rows = [
            (step, end, receive(losses, known), receive(_rates(rate), known), seconds)
            for step, end, losses, rate, seconds in self.rows
        ]

    @property
    def is_on_device(self) -> bool:
        """Whether a device may still compute the loss of the last step."""
        return bool(self.rows) and any(map(is_on_device, self.rows[-1][2]))

    def take(self) -> ScalarColumns:
        """Remove and return all steps; what is on a device is transferred at once."""
        pending, size = self.pending(), len(self.rows)
        if pending:
            self.receive(transfer(pending))
        self._taken = self._uncharged(size)
        taken, self.rows, self._charged = self.rows, [], 0
        steps, ends, losses, rates, _ = zip(*taken, strict=True) if taken else ((), (), (), (), ())
        clock_offset = time.time() - time.perf_counter()
        columns: dict[str, tuple[float | None, ...]] = {
            "loss": tuple(map(mean_loss, losses)),
            "lr": tuple(rate if type(rate) is float else largest(_rates(rate)) for rate in rates),
        }
        loop = {step: self._loop.pop(step) for step in steps if step in self._loop} if self._loop else {}
        for name in {name for each in loop.values() for name in each}:
            columns[name] = tuple(loop.get(step, {}).get(name) for step in steps)
        times = tuple(clock_offset + each for each in ends)
        known = {name: each for name, each in columns.items() if each.count(None) < size}
        return ScalarColumns(steps, times, known)


def _rates(rate: Rate) -> Losses:
    if rate is None:
        return ()
    return (rate,) if isinstance(rate, float) else rate


class SkippedSteps:
    """Steps whose losses are not recorded. They are only counted."""

    def __init__(self) -> None:
        self.is_active = False
        self.first = self.until = 0
        """The first step that is skipped, and the next one whose loss is recorded."""
        self.left = 0
        """Steps that the hook after a step only counts down."""
        self._planned = 0

    @property
    def counted(self) -> int:
        """Steps that were counted down, and that the record of the current step does not know of."""
        return self._planned - self.left

    def start(self, step: int, until: int, optimizers: int) -> None:
        """Skip the steps from this one to the one before `until`."""
        self.is_active, self.first, self.until = True, step, until
        self.left = self._planned = until - step - 1 if optimizers == 1 else 0

    def settle(self, record: StepRecord) -> None:
        """Add the steps that were counted down to the record."""
        record.step += self.counted
        self.left = self._planned = 0

    def count(self, record: StepRecord, optimizer: Optimizer, optimizers: int) -> bool:
        """Count a step of an optimizer, one of so many; return whether a step ended that was the last to be skipped."""
        self.settle(record)
        if id(optimizer) in record.stepped:  # as in `TrainingSteps.begin`
            record.step += 1
            record.stepped.clear()
        record.stepped.add(id(optimizer))
        if len(record.stepped) < optimizers:
            return False
        record.stepped.clear()
        record.step += 1
        return record.step >= self.until


# Heuristic: smallest share of the time in which a thread ran although it wanted to; less is not believed.
MIN_RUN_SHARE = 0.1


class RunShare:
    """The share of the time in which this thread waited for nothing but a device, a file or another thread.

    In the rest of the time it could have run, and the machine ran something else. Linux counts that. Elsewhere the
    share is 1, and the time of other processes is taken for training.
    """

    def __init__(self) -> None:
        self._thread, self._file = threading.get_ident(), -1
        with contextlib.suppress(OSError):
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._last = time.perf_counter(), 0.0
        self._last = self._read()

    def take(self) -> float:
        """Return the share since the last call."""
        (start, before), self._last = self._last, self._read()
        seconds, delay = self._last[0] - start, self._last[1] - before
        return max(MIN_RUN_SHARE, 1 - delay / seconds) if delay > 0 and seconds > 0 else 1.0

    def _read(self) -> tuple[float, float]:
        """The time, and the seconds until then in which the thread was delayed."""
        now, delay = time.perf_counter(), self._last[1]
        if self._file >= 0 and threading.get_ident() == self._thread:
            with contextlib.suppress(OSError, IndexError, ValueError):
                delay = float(os.pread(self._file, 100, 0).split()[1]) / 1e9
        return now, delay

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
