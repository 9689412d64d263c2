r"""Measures the cost of a watch with the default budget over a whole run, for benchmarks/watch.py.

The budget of one percent is smaller than the difference between two equal networks: the place of the weights in memory
can make one of them up to two percent slower. So each of two networks is watched in turn while the other trains
without a watch, and the difference cancels. With $t$ the time of a run and $w$ the factor of watching,

$$ \frac{w\,t_B}{t_A} \cdot \frac{w\,t_A}{t_B} = w^2 . $$

The speed of a machine also drifts by more than that within a second, so the two loops alternate step by step. The watch
would count the other loop's steps as training time and double its budget, so its clock is stopped meanwhile. The times
of all steps are added up, and those of the second half again. The thread that writes the run file counts as part of the
watched loop, in whichever step it runs.

The same measurement without a watch should give 1. This control is measured too and shows the error of the method.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

from benchmarks import monitors
from benchmarks.timing import significant
from benchmarks.training_loop import Loop
from leadline import Case
from leadline.monitor import journal, sampler, step_record, steps

TIMED = (journal, sampler, steps, step_record)  # the modules of a watch that read the clock


class PausableClock:
    """`perf_counter` without the time during which it was paused."""

    def __init__(self) -> None:
        self._paused_seconds = 0.0

    def __call__(self) -> float:
        return perf_counter() - self._paused_seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        start = perf_counter()
        yield
        self._paused_seconds += perf_counter() - start

    @contextmanager
    def installed_in_watches(self) -> Iterator[None]:
        for module in TIMED:
            module.perf_counter = self  # type: ignore[attr-defined]  # imported there, not exported
        try:
            yield
        finally:
            for module in TIMED:
                module.perf_counter = perf_counter  # type: ignore[attr-defined]  # as above


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The seconds of each step of both loops while one was watched, and the watch's own account."""

    watched: list[float]
    plain: list[float]
    samples: int = 0
    own: float = 0.0
    writing: float = 0.0

    def ratio(self, first: int = 0) -> float:
        """Return the ratio from this step on; the time of the writing thread is spread over all steps."""
        share = (len(self.plain) - first) / len(self.plain)
        return (sum(self.watched[first:]) + share * self.writing) / sum(self.plain[first:])


def measure_budget(build: Callable[[], Case], count: int, *, watched: bool = True) -> dict[str, Any]:
    """Measure the default budget over this many steps; without a watch, the difference of two plain loops."""
    one, other = Loop(build), Loop(build)
    turns = [take_turn(a, b, count, watched=watched) for a, b in ((one, other), (other, one))]
    return {
        "steps": count,
        "ratio": significant(_middle([turn.ratio() for turn in turns])),
        "second_half": significant(_middle([turn.ratio(count // 2) for turn in turns])),
        "turns": [significant(turn.ratio()) for turn in turns],
        "writing": significant(turns[0].writing / sum(turns[0].plain), 2),
        "samples": turns[0].samples,
        "own_estimate": significant(1 + statistics.fmean(turn.own for turn in turns)),
        "plain_ms": significant(1e3 * statistics.median(turns[0].plain), 3),
    }


def take_turn(over: Loop, under: Loop, count: int, *, watched: bool) -> Turn:
    clock = PausableClock()
    with tempfile.TemporaryDirectory() as folder, clock.installed_in_watches():
        if watched:
            over.attach(monitors.ours_by_budget, Path(folder))
        seconds = _alternate(over, under, count, clock)
        if not watched:
            return Turn(**seconds)
        watch: Any = over.monitor
        turn = Turn(**seconds, samples=watch.samples(), own=watch.overhead(), writing=watch.writing())
        over.close()
    return turn


def _alternate(over: Loop, under: Loop, count: int, clock: PausableClock) -> dict[str, list[float]]:
    """Run a step of each loop alternately; the first one rotates."""
    seconds: dict[str, list[float]] = {"watched": [], "plain": []}
    for number in range(2 * count):
        if number % 4 in (0, 3):
            seconds["watched"].append(_timed(over))
        else:
            with clock.paused():
                seconds["plain"].append(_timed(under))
    return seconds


def _timed(loop: Loop) -> float:
    start = thread_time()
    loop.step()
    return thread_time() - start


def _middle(ratios: Sequence[float]) -> float:
    return math.prod(ratios) ** (1 / len(ratios))
