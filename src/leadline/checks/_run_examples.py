"""Small made-up histories: what an alarm's sick and healthy examples are built of."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from leadline.checks._history import History, Layout
from leadline.records.run import Sample

Course = Callable[[int], float]
BLOCKS = 6
LAYOUT = Layout(
    parameters=tuple(f"layers.{index}.weight" for index in range(BLOCKS)),
    blocks=tuple(f"layers.{index}" for index in range(BLOCKS)),
    homes=tuple(range(BLOCKS)),
)
INVARIANT = replace(LAYOUT, invariant=(True,) * BLOCKS)
DECAYED = replace(
    INVARIANT, rotation=(math.sqrt(2 * 0.05),) * BLOCKS, settling=(1 / 0.05,) * BLOCKS
)  # SGD, decay 0.05


def course(steps: int, layout: Layout = LAYOUT, **numbers: Course) -> History:
    """A history in which each number follows a function of the step."""
    samples = (
        Sample(step=step, scalars={name: follow(step) for name, follow in numbers.items()})
        for step in range(steps)
    )
    return History(layout).extend(samples)


def sampled(
    steps: int,
    rows: Mapping[str, Callable[[int], list[float]]],
    *,
    every: int = 1,
    layout: Layout = LAYOUT,
    numbers: Mapping[str, Course] | None = None,
) -> History:
    """A history with vectors recorded every so many steps."""
    samples = (
        Sample(
            step=step,
            scalars={name: follow(step) for name, follow in (numbers or {}).items()},
            vectors={name: follow(step) for name, follow in rows.items()} if step % every == 0 else {},
        )
        for step in range(steps)
    )
    return History(layout).extend(samples)


def noisy(level: Course, noise: float, seed: int = 0) -> Course:
    """A function of the step with multiplicative noise, the same each time it is asked."""
    return lambda step: level(step) * math.exp(noise * random.Random(seed * 1_000_003 + step).gauss(0, 1))


def constant(value: float) -> Course:
    return lambda _: value


def falling(start: float, floor: float, steps: float) -> Course:
    """From `start` towards `floor`, by a factor e every `steps` steps."""
    return lambda step: floor + (start - floor) * math.exp(-step / steps)


def flat(value: float) -> Callable[[int], list[float]]:
    """The same value for every layer."""
    return lambda _: [value] * BLOCKS
