r"""What to measure at which step, so that watching costs the share of the step time that it may.

Work comes in levels, each with all that is below it. Level $i$ costs $c_i$ seconds beyond the levels below it, and
runs every $n_i$ steps. With a median step of $s$ seconds and a budget $b$, the levels are served in order, each with
its share $a_i$ of what the ones before it left:

$$ n_i = \max\left(1, \left\lceil \frac{c_i}{a_i\,r_i} \right\rceil\right), \qquad
   r_1 = b\,s, \quad r_{i+1} = r_i - c_i / n_i. $$

All seconds spent and all seconds earned are in one account. The first step is traced on credit, and a further one only
when the account holds its price: once the first trace is paid, all traces together stay within the budget at every
step from there on. The first steps are the most telling, so the levels below look at steps 1, 2, 4, 8, ... on credit,
as long as less than `CREDIT` is owed. While the account is in the red, `PAYBACK` of the budget pays it back;
if the levels below owe `CREDIT` by themselves, only losses are kept.

The loss of every step is kept whatever it costs, some microseconds. It is paid like everything else, but with at most
`KEEPING` of the budget: on a loop so fast that this does not suffice, watching costs more than the budget, and says so.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from enum import IntEnum

CREDIT = 1.0  # steps' worth of time that may be owed before a further early look below a trace is taken; ours
RECENT = 31  # steps whose median is the step time; ours: one evaluation among them does not count as a step
PAUSE = 10  # usual steps; ours: what takes longer is an evaluation or another loop, and earns what a usual step does
PAYBACK = (
    0.75  # of the budget, while something is owed; ours: a first look of seven steps is paid in a thousand
)
KEEPING = 0.5  # of the budget, at most, for what is kept of every step; ours: the rest buys alarms and norms
COSTS = 5  # last runs of a level whose median is its cost; ours
GLANCES = 10  # looks at blocks from one trace to the next, with a fixed interval; ours: each costs a tenth of a trace
NEVER = 2**62  # a step that does not come, and that an int64 still holds
PLAN_EVERY = 64  # steps between two plans where no parameter is measured; ours: a plan costs some 20 us


class Level(IntEnum):
    """How closely a step is looked at."""

    LOSS = 0
    """Loss and learning rate, which are kept at every step."""
    ROW = 1
    """Times and loss scale; alarms are asked."""
    GRADIENTS = 2
    """Norm of the gradient of every parameter."""
    UPDATES = 3
    """Norms of every parameter and of what the step changed in it."""
    BLOCKS = 4
    """Second moments at the exit of every block, forward and backward."""
    TRACE = 5
    """Every op of the pass."""


SHARES = {  # of what is left, in order; ours: each level leaves room for those above it
    Level.ROW: 0.25,
    Level.GRADIENTS: 0.3,
    Level.UPDATES: 0.25,
    Level.BLOCKS: 0.2,
    Level.TRACE: 0.7,
}


class Timetable:
    """Says how closely to look at a step; is told what looking cost."""

    def __init__(
        self, budget: float, every: int | None, first: int = 0, highest: Level = Level.TRACE
    ) -> None:
        self.budget, self.every, self.first = budget, every, first
        self.highest = highest
        """The closest look that is planned."""
        self.lowest = Level.LOSS
        """The least that is measured at every step, whatever it costs."""
        self.glance_every = max(1, (every or 1) // GLANCES)
        """With a fixed interval, steps between two looks at blocks."""
        self.unable: set[Level] = set()
        """Levels that have nothing to measure yet."""
        self.due = dict.fromkeys(SHARES, first)
        """The step at which each level is due next."""
        self._urgent: int | None = None
        self.spent = 0.0
        """Seconds that watching took."""
        self.trained = 0.0
        """Seconds that training took, watching apart."""
        self._last = dict.fromkeys(SHARES, first)
        self._costs: dict[Level, deque[float]] = {level: deque(maxlen=COSTS) for level in SHARES}
        self._steps: deque[float] = deque(maxlen=RECENT)
        self._usual: float | None = None
        self._seen = 0
        self._traced = self._kept = 0.0
        self._planned = first
        self._interval = dict.fromkeys(SHARES, 1)

    @property
    def step_seconds(self) -> float | None:
        """A usual step of training, without watching; None before the first one."""
        return self._usual

    @property
    def overhead(self) -> float:
        """Seconds of watching for each second of training."""
        return self.spent / self.trained if self.trained > 0 else 0.0

    @property
    def debt(self) -> float:
        """Seconds spent beyond what the budget gave so far; of what is kept of every step, its share at most."""
        earned = self.budget * self.trained
        return self.spent - max(0.0, self._kept - KEEPING * earned) - earned

    def level(self, step: int) -> Level:
        """How closely to look at this step."""
        if step == self._urgent:
            return Level.TRACE
        if self.every is None and step < min(self.due.values()):  # by far the usual case
            return self.lowest
        if self.every is not None:
            wanted = self._by_interval(step - self.first, self.every)
        else:
            wanted = max((level for level, due in self.due.items() if step >= due), default=Level.LOSS)
        return max(min(wanted, self.highest), self.lowest)

    def _by_interval(self, count: int, every: int) -> Level:
        if count % every == 0:
            return Level.TRACE
        return Level.BLOCKS if count % self.glance_every == 0 else Level.UPDATES

    def ran(self, step: int, level: Level) -> None:
        for each in SHARES:
            if each <= level:
                self._last[each] = step
                self.due[each] = NEVER if each in self.unable else step + self._interval[each]

    def cost(self, level: Level, seconds: float) -> None:
        """A run of this level took so long, beyond the levels below it."""
        self._costs[level].append(seconds)
        self.spent += seconds
        if level == Level.TRACE:
            self._traced += seconds

    def kept(self, seconds: float) -> None:
        """What is kept of every step took so long."""
        self._kept += seconds
        self.spent += seconds

    def stepped(self, seconds: float) -> None:
        """A step of training took so long, watching apart."""
        self._steps.append(seconds)
        self._seen += 1
        if self._usual is None or self._seen % RECENT == 0:
            self._usual = statistics.median(self._steps)
        self.trained += seconds if seconds <= PAUSE * self._usual else self._usual

    def soon(self, step: int) -> None:
        """Trace the next step, whatever it costs: something happened."""
        self._urgent = step + 1

    def affords(self, seconds: float) -> bool:
        """There is as much on the account."""
        return self.debt + seconds <= 0

    def wants_plan(self, step: int, level: Level) -> bool:
        return self.every is None and (level > Level.ROW or step >= self._planned + PLAN_EVERY)

    def plan(self, step: int) -> None:
        """When each level is due next, after this step."""
        self._planned = step
        if self._steps:
            self._usual = statistics.median(self._steps)
        early = self.first + _next_power_of_two(step - self.first)
        owed = self.debt - CREDIT * (self._usual or 0.0)
        self._interval = self._intervals()
        for level, interval in self._interval.items():
            due = self._last[level] + interval
            if level == Level.TRACE:
                price = sum(
                    self._price(each) for each in SHARES
                )  # a traced step is measured in every other way too
                self.due[level] = max(due, step + self._until_earned(self.debt + price))
            else:
                due = min(due, early) if owed <= 0 else due
                self.due[level] = max(due, step + self._until_earned(owed - self._traced))
        self.due |= dict.fromkeys(self.unable, NEVER)

    def _until_earned(self, seconds: float) -> int:
        """Steps until the budget has given so many seconds; the next one, if it need not give any."""
        return max(1, math.ceil(seconds / (self.budget * self._usual))) if self._usual else 1

    def _price(self, level: Level) -> float:
        """What a look costs beyond the levels below it."""
        return statistics.median(self._costs[level]) if self._costs[level] else 0.0

    def _intervals(self) -> dict[Level, int]:
        pace = 1 - PAYBACK if self.debt > 0 else 1.0
        left = self.budget * (self._usual or 0.0) * pace
        left -= min(self._kept / max(1, self._seen), KEEPING * left)
        found = {}
        for level, share in SHARES.items():
            cost = self._price(level)
            found[level] = max(1, math.ceil(cost / max(share * left, 1e-12))) if cost else 1
            left -= cost / found[level]
        return found


def _next_power_of_two(step: int) -> int:
    """The first of 1, 2, 4, 8, ... that is greater."""
    return 1 << step.bit_length() if step > 0 else 1
