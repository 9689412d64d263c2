"""A turn of limited processor time on a sweep: what is finished is stored, the rest is for the next turn."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from leadline.lab.sweeps import Progress

UNFINISHED = 3  # exit code: start again


class OutOfTimeError(Exception):
    """The turn is over; what is finished is stored."""


def until(seconds: float, name: str) -> Progress:
    """Progress that is printed, and that begins no further bundle after so much processor time."""
    deadline = time.process_time() + seconds

    def watch(done: int, total: int, text: str) -> None:
        print(f"{name} {done}/{total} {time.process_time():.0f} s", flush=True)
        if time.process_time() > deadline and done < total:
            raise OutOfTimeError

    return watch


def take(main: Callable[[], None]) -> None:
    """Run a benchmark; if its turn ends before it does, its exit code says so."""
    try:
        main()
    except OutOfTimeError:
        sys.exit(UNFINISHED)
