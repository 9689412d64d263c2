"""One step under way: what was told and measured of it, and what that took."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

from torch import Tensor

from leadline.records import Trace
from leadline.watching.budget import Level
from leadline.watching.clipping import RawGradients
from leadline.watching.exits import Glance
from leadline.watching.gauges import Gauges


@dataclass(slots=True)
class Round:
    """One step under way."""

    step: int
    level: Level
    gauges: Gauges
    began: float | None
    """None for the first step: nobody knows when it began."""
    seconds: float = 0.0
    plain: float = 0.0
    """Seconds without ours."""
    telling: float = 0.0
    """Seconds that it took to be told of losses: part of every step, whatever its level."""
    read: float = 0.0
    """Seconds of reading the trace, which are among the costs of tracing."""
    losses: list[Tensor | float] = field(default_factory=list)
    unclipped: list[Tensor | float] = field(default_factory=list)
    """Gradient norms before they were clipped, one an optimiser."""
    costs: dict[Level, float] = field(default_factory=dict)
    """Seconds of our own."""
    stepped: set[int] = field(default_factory=set)
    trace: Trace | None = None
    glance: Glance | None = None
    raw: RawGradients | None = None
    clipped: float | None = None

    def took(self, level: Level, since: float) -> float:
        """Note the time since then as a cost of this level; returns what time it is."""
        now = perf_counter()
        self.costs[level] = self.costs.get(level, 0.0) + now - since
        return now

    @property
    def ready(self) -> bool:
        """Nothing that was measured is still on its way from a device."""
        told = all(not isinstance(each, Tensor) for each in self.losses)
        return told and self.gauges.ready and (self.glance is None or self.glance.ready)

    @property
    def own(self) -> float:
        return sum(self.costs.values()) + self.telling
