"""A change over depth in two parts: what single blocks do, called cliffs, and the change per block of all others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import median

# Derived: e-folds. The steepest step of a power law l^p is the first one, p ln 2, which is less for p < 2.9.
MIN_CLIFF = 2.0
# Derived: share of the whole change in a single block. A law that all blocks follow has 1/L in each.
MIN_CLIFF_SHARE = 0.5
# Heuristic: e-folds by which any cliff may differ from the other blocks. Layers that follow an even law have 0.1 to 4.
MIN_OUTLIER = 5.0
# Derived: four standard deviations of a normal distribution, in units of the median deviation.
MIN_OUTLIER_DEVIATIONS = 6.0
# Heuristic: one cliff per this many blocks; more of them are the pattern of a law.
MIN_BLOCKS_PER_CLIFF = 8
# Derived: with two steps neither can be called the exception.
MIN_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthChange:
    """The change of a quantity from block to block, in e-folds, in the direction in which it was given."""

    steps: tuple[float, ...]
    cliffs: tuple[int, ...]
    """Indices of the steps that are cliffs, the largest first."""

    @property
    def total(self) -> float:
        return math.fsum(self.steps)

    @property
    def even_steps(self) -> tuple[float, ...]:
        """The steps without the cliffs."""
        return tuple(step for place, step in enumerate(self.steps) if place not in self.cliffs)

    @property
    def rest(self) -> float:
        """The change without the cliffs."""
        return math.fsum(self.even_steps)

    @property
    def per_block(self) -> float:
        """The mean change per block without the cliffs."""
        even = self.even_steps
        return math.fsum(even) / len(even) if even else 0.0

    @property
    def halves(self) -> tuple[float, float]:
        """The change over the first and over the second half of the blocks, without the cliffs."""
        even = self.even_steps
        middle = (len(even) + 1) // 2
        return math.fsum(even[:middle]), math.fsum(even[middle:])


def depth_change(logs: Sequence[float], *, along: bool = False) -> DepthChange:
    """Split the change of a logarithm over depth; with `along`, only steps in its direction count as cliffs.

    A step is a cliff if it makes most of the whole change, or if it differs from the median step far more than the
    other steps do.
    """
    return _split_steps(tuple([after - before for before, after in pairwise(logs)]), along)


@lru_cache(maxsize=256)  # several checks ask about the same blocks
def _split_steps(steps: tuple[float, ...], along: bool) -> DepthChange:
    if len(steps) < MIN_STEPS:
        return DepthChange(steps=steps, cliffs=())
    total, middle = math.fsum(steps), median(steps)
    deviation = median(abs(step - middle) for step in steps)
    outlier = max(MIN_OUTLIER, MIN_OUTLIER_DEVIATIONS * deviation)

    def is_cliff(step: float) -> bool:
        if abs(step) < MIN_CLIFF or (along and step * total <= 0):
            return False
        mostly = abs(step) > MIN_CLIFF_SHARE * abs(total) and step * total > 0
        return mostly or abs(step - middle) > outlier

    cliffs = sorted(
        (place for place, step in enumerate(steps) if is_cliff(step)), key=lambda place: -abs(steps[place])
    )
    return DepthChange(steps=steps, cliffs=tuple(cliffs[: max(1, len(steps) // MIN_BLOCKS_PER_CLIFF)]))
