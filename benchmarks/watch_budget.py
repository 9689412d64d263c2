r"""What the default budget comes to over a whole run: the part of benchmarks/watch.py that needs care of its own.

One per cent is less than two equal networks differ by: where their weights happen to lie in memory makes one of them
up to two per cent slower, for as long as it lives. So each of two networks is watched in turn while the other trains
beside it, and what is due to their places cancels. With $t$ the time of a run and $w$ what watching multiplies it by,

$$ \frac{w\,t_B}{t_A} \cdot \frac{w\,t_A}{t_B} = w^2 . $$

It is also less than a machine drifts by in a second, so the two loops alternate step by step. A watch would take the
other loop's steps for training of its own, and its budget for twice as large: while the other runs, its clock is made
to stand. All steps are added up, from the first one on, and once more for the second half; the thread that writes the
run file counts as part of the watched loop, in whoever's step it happens to run.

The same with no watch at all should give 1: this control is measured too, and tells what the figures are good for.
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
from leadline.monitor import journal, sampler, steps
from leadline.monitor import step_record as under_way

TIMED = (journal, sampler, steps, under_way)  # the modules of a watch that ask what time it is


class StandingClock:
    """`perf_counter` without the time in which it was stopped."""

    def __init__(self) -> None:
        self._stood = 0.0

    def __call__(self) -> float:
        return perf_counter() - self._stood

    @contextmanager
    def standing(self) -> Iterator[None]:
        start = perf_counter()
        yield
        self._stood += perf_counter() - start

    @contextmanager
    def given_to_watches(self) -> Iterator[None]:
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
    clock = StandingClock()
    with tempfile.TemporaryDirectory() as folder, clock.given_to_watches():
        if watched:
            over.attach(monitors.ours_by_budget, Path(folder))
        seconds = _alternate(over, under, count, clock)
        if not watched:
            return Turn(**seconds)
        watch: Any = over.monitor
        found = Turn(**seconds, samples=watch.samples(), own=watch.overhead(), writing=watch.writing())
        over.close()
    return found


def _alternate(over: Loop, under: Loop, count: int, clock: StandingClock) -> dict[str, list[float]]:
    """Run a step of each loop alternately; the first one rotates."""
    seconds: dict[str, list[float]] = {"watched": [], "plain": []}
    for number in range(2 * count):
        if number % 4 in (0, 3):
            seconds["watched"].append(_timed(over))
        else:
            with clock.standing():
                seconds["plain"].append(_timed(under))
    return seconds


def _timed(loop: Loop) -> float:
    start = thread_time()
    loop.step()
    return thread_time() - start


def _middle(ratios: Sequence[float]) -> float:
    return math.prod(ratios) ** (1 / len(ratios))
