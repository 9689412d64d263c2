"""A budget of time: "60s", "2m" or a number of seconds, and how much of it is left."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from leadline.errors import InputError

Clock = Callable[[], float]
Given = float | str | None
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_WRITTEN = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Runs from when it was made. Work is asked for only while there is time; a step that has begun is finished."""

    seconds: float | None
    """None: as long as it takes."""
    clock: Clock
    start: float

    @property
    def spent(self) -> float:
        return self.clock() - self.start

    @property
    def left(self) -> float:
        return math.inf if self.seconds is None else self.seconds - self.spent

    @property
    def over(self) -> bool:
        return self.left <= 0


def budget_of(given: Given, clock: Clock = time.monotonic) -> Budget:
    """The budget that a user means, begun now."""
    return Budget(seconds=None if given is None else seconds_of(given), clock=clock, start=clock())


def seconds_of(given: float | str) -> float:
    found = _WRITTEN.fullmatch(given.lower()) if isinstance(given, str) else None
    if found and found[2] in UNITS:
        seconds = float(found[1]) * UNITS[found[2]]
    elif isinstance(given, int | float) and not isinstance(given, bool):
        seconds = float(given)
    else:
        seconds = math.nan
    if seconds > 0:
        return seconds
    raise InputError(
        expected="a budget of time: seconds as a number, or as text such as '60s', '2m', '1h'",
        got=repr(given),
        fix="pass, for instance, budget=60; without one, the search takes as long as it takes",
    )
