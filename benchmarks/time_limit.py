"""A limit on the processor time of a sweep: finished cells are stored, and the next run does the rest."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from leadline.lab.sweeps import Progress

UNFINISHED = 3  # exit code: start again


class OutOfTimeError(Exception):
    """The time is over; finished cells are stored."""


def until(seconds: float, name: str) -> Progress:
    """Return a progress function that prints, and that stops the sweep after this much processor time."""
    deadline = time.process_time() + seconds

    def watch(done: int, total: int, text: str) -> None:
        print(f"{name} {done}/{total} {time.process_time():.0f} s", flush=True)
        if time.process_time() > deadline and done < total:
            raise OutOfTimeError

    return watch


def take(main: Callable[[], None]) -> None:
    """Run a benchmark. If its time is over before it is done, the exit code says so."""
    try:
        main()
    except OutOfTimeError:
        sys.exit(UNFINISHED)
