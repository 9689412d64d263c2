"""Small made-up histories: the sick and healthy examples of run checks."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from leadline.checks._history import History, Layout
from leadline.records.run import Sample

StepFunction = Callable[[int], float]
BLOCKS = 6
LAYOUT = Layout(
    parameters=tuple(f"layers.{index}.weight" for index in range(BLOCKS)),
    blocks=tuple(f"layers.{index}" for index in range(BLOCKS)),
    parameter_blocks=tuple(range(BLOCKS)),
)
INVARIANT = replace(LAYOUT, invariant=(True,) * BLOCKS)
# SGD with a weight decay of 0.05.
DECAYED = replace(INVARIANT, rotation=(math.sqrt(2 * 0.05),) * BLOCKS, settling=(1 / 0.05,) * BLOCKS)


def scalar_history(steps: int, layout: Layout = LAYOUT, **numbers: StepFunction) -> History:
    """A history in which each number is a function of the step."""
    samples = (
        Sample(step=step, scalars={name: value(step) for name, value in numbers.items()})
        for step in range(steps)
    )
    return History(layout).extend(samples)


def vector_history(
    steps: int,
    rows: Mapping[str, Callable[[int], list[float]]],
    *,
    every: int = 1,
    layout: Layout = LAYOUT,
    numbers: Mapping[str, StepFunction] | None = None,
) -> History:
    """A history in which vectors are recorded at every `every`-th step."""
    samples = (
        Sample(
            step=step,
            scalars={name: value(step) for name, value in (numbers or {}).items()},
            vectors={name: row(step) for name, row in rows.items()} if step % every == 0 else {},
        )
        for step in range(steps)
    )
    return History(layout).extend(samples)


def noisy(level: StepFunction, noise: float, seed: int = 0) -> StepFunction:
    """A function of the step with multiplicative noise that depends on the step and the seed only."""
    return lambda step: level(step) * math.exp(noise * random.Random(seed * 1_000_003 + step).gauss(0, 1))


def constant(value: float) -> StepFunction:
    return lambda _: value


def falling(start: float, floor: float, steps: float) -> StepFunction:
    """From `start` towards `floor`; the distance shrinks by a factor e every `steps` steps."""
    return lambda step: floor + (start - floor) * math.exp(-step / steps)


def every_block(value: float) -> Callable[[int], list[float]]:
    """The same value for every block."""
    return lambda _: [value] * BLOCKS
