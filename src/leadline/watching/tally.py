"""The least of every step, its loss and learning rate: kept whatever the budget, and handed over together.

Whoever reads a run wants its loss without gaps, on the fastest loop too. So this is not bought from the budget, and is
as cheap as can be: three appends a step. Everything that costs more is done for many steps at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

from torch import Tensor

from leadline.runs.pending import Rows

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
