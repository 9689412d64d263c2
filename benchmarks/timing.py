"""Time several variants in one process, alternating, so that a drift of the machine affects all of them."""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The median and the quartiles of some measurements."""

    low: float
    median: float
    high: float


def alternate(
    ways: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warmups: int = 2,
    patience: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds of each variant in each round. A round runs every variant once; the first one rotates.

    With one thread, `time.process_time` does not count the time that other programs take.

    After `patience` seconds no further round starts, but a third of the rounds always runs.
    """
    names = list(ways)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    deadline = time.perf_counter() + patience
    for turn in range(-warmups, rounds):
        if turn >= rounds / 3 and time.perf_counter() > deadline:
            break
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            start = clock()
            ways[name]()
            elapsed = clock() - start
            if turn >= 0:
                seconds[name].append(elapsed)
    return seconds


def ratio(over: list[float], under: list[float]) -> Spread:
    """Return median and quartiles of the round-by-round ratios, in which common disturbances cancel."""
    return spread([a / b for a, b in zip(over, under, strict=True)])


def spread(samples: list[float]) -> Spread:
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Spread(low=low, median=median, high=high)


def rounded(record: Spread, digits: int = 4) -> dict[str, float]:
    """Return JSON data rounded to `digits` significant figures."""
    return {key: significant(value, digits) for key, value in asdict(record).items()}


def significant(value: float, digits: int = 4) -> float:
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


def machine() -> dict[str, str]:
    """Return a description of the machine."""
    return {"cpu": _cpu(), "python": platform.python_version(), "torch": torch.__version__}


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0]}, {len(models)} cores" if models else platform.processor()
