r"""The measurement schedule: what to measure at which step, so that watching costs its share of the step time.

Measurements come in levels, and each level includes those below it. Level $i$ costs $c_i$ seconds beyond the levels
below it and runs every $n_i$ steps. With a median step of $s$ seconds and a budget $b$, the levels are served in
order, and each one gets its share $a_i$ of what the earlier ones left:

$$ n_i = \max\left(1, \left\lceil \frac{c_i}{a_i\,r_i} \right\rceil\right), \qquad
   r_1 = b\,s, \quad r_{i+1} = r_i - c_i / n_i. $$

All seconds spent and all seconds earned are in one account. The first step is traced on credit, and another one only
when the account holds its price: once the first trace is paid, all traces together stay within the budget at every
later step. The first steps are the most informative, so the levels below a trace measure steps 1, 2, 4, 8, ... on
credit, as long as the debt is below `MAX_CREDIT_STEPS`. While the account is in debt, `PAYBACK_SHARE` of the budget
pays it back. If the levels below a trace owe `MAX_CREDIT_STEPS` by themselves, only losses are recorded.

Losses have `MAX_LOSS_SHARE` of the budget. To record one costs $c$ seconds, and to let it pass $c_0$. Recorded losses
are handed to the writing thread together, which costs $w$ seconds each time, so they wait for $h$ seconds. Half of the
share is for writing, the rest for recording, so the loss of every $k$-th step is recorded:

$$ a = \texttt{MAX\_LOSS\_SHARE}\,b - \frac{c_0}{s}, \qquad h = \frac{2w}{a}, \qquad
   k = \left\lceil \frac{c}{s\,(a - w / \max(h, s))} \right\rceil. $$

Both have limits: $h$ is at most `MAX_HOLD_SECONDS`, and $k$ at most `MAX_LOSS_INTERVAL`. On a loop so fast that this
does not suffice, watching costs more than the budget, and `overhead` shows it. While the loop ledger follows the loop,
and in the steps before, the loss of every step is recorded.

The loop ledger follows the first steps on credit and later ones in groups, when `LEDGER_SHARE` of the budget has earned
what they cost. At least one group in `MAX_LEDGER_REST` steps is followed at any cost.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from enum import IntEnum

# Heuristic: the debt, in usual steps, above which no early measurement below a trace is made; one step of delay is
# not noticed.
MAX_CREDIT_STEPS = 1.0
# Heuristic: the step time is the median of so many steps, so that one evaluation among them does not count as a step.
STEP_TIME_WINDOW = 31
# Heuristic: what takes so many usual steps is an evaluation or another loop, and earns what one usual step does.
MIN_PAUSE_STEPS = 10
# Heuristic: share of the budget that pays back a debt; a first trace that costs seven steps is paid in a thousand.
PAYBACK_SHARE = 0.75
# Heuristic: share of the budget for losses and for writing them; the other half buys norms, checks and the ledger.
MAX_LOSS_SHARE = 0.5
# Heuristic: share of that for writing.
WRITING_SHARE = 0.5
# Heuristic: largest number of steps from one recorded loss to the next. A loss that becomes NaN stays NaN, so it is
# reported within so many steps.
MAX_LOSS_INTERVAL = 64
# Heuristic: seconds that recorded losses wait for the writing thread, if the budget allows, and at most. A kill loses
# what waits.
MIN_HOLD_SECONDS, MAX_HOLD_SECONDS = 0.04, 0.25
# Heuristic: the cost of recording is the median of so many recordings, which forgets interruptions by other processes.
LOSS_COST_WINDOW = 64
# Heuristic: the cost of writing is the mean of so many times: at most once per second it includes a transaction.
WRITING_COST_WINDOW = 32
# Calibrated by benchmarks/loop/wrapper_cost.py: what it takes to record a loss, over what is timed within: calls,
# arguments, and code that training has displaced from the caches. If only some losses are recorded, the wrapper of the
# backward pass is set and removed for each.
LOSS_COST_FACTOR, SINGLE_LOSS_COST_FACTOR = 2.9, 4.0
# Calibrated by benchmarks/loop/wrapper_cost.py: what a step takes whose loss is not recorded, over the same.
SKIPPED_COST_FACTOR = 0.17
# Heuristic: share of the budget for following the calls of the training loop.
LEDGER_SHARE = 0.3
# Heuristic: steps after which a group is followed at any cost: a loop may go wrong at any time. Eight steps at 300
# microseconds, spread over so many, are 2 microseconds per step.
MAX_LEDGER_REST = 1024
# Heuristic: the cost of a level is the median of its last runs; five forget a slow outlier soon.
COST_WINDOW = 5
# Heuristic: block measurements per trace with a fixed interval; each costs about a tenth of a trace.
BLOCK_MEASUREMENTS_PER_TRACE = 10
# Derived: a step that is never reached and still fits an int64.
NEVER = 2**62
# Heuristic: steps between two plans while no parameter is measured; a plan costs about 20 microseconds.
PLAN_INTERVAL = 64


class Level(IntEnum):
    """How closely a step is measured."""

    LOSS = 0
    """Loss and learning rate, which are recorded at every step."""
    ROW = 1
    """Times and loss scale; run checks look at the history."""
    GRADIENTS = 2
    """Norm of the gradient of every parameter."""
    UPDATES = 3
    """Norms of every parameter and of its update."""
    BLOCKS = 4
    """Second moments at the exit of every block, forward and backward."""
    TRACE = 5
    """Every op of the pass."""


# Heuristic: share of the remaining budget, in order; each level leaves room for the levels above it.
LEVEL_SHARES = {
    Level.ROW: 0.25,
    Level.GRADIENTS: 0.3,
    Level.UPDATES: 0.25,
    Level.BLOCKS: 0.2,
    Level.TRACE: 0.7,
}


class MeasurementSchedule:
    """Decides how closely each step is measured, given what the measurements have cost so far."""

    def __init__(
        self, budget: float, every: int | None, first_step: int = 0, max_level: Level = Level.TRACE
    ) -> None:
        self.budget, self.every, self.first_step = budget, every, first_step
        self.max_level = max_level
        """The closest measurement that is planned."""
        self.min_level = Level.LOSS
        """The measurement that is made at every step at any cost."""
        self.block_interval = max(1, (every or 1) // BLOCK_MEASUREMENTS_PER_TRACE)
        """With a fixed interval, the number of steps between two measurements of blocks."""
        self.unavailable: set[Level] = set()
        """Levels that have nothing to measure yet."""
        self.due = dict.fromkeys(LEVEL_SHARES, first_step)
        """The step at which each level is due next."""
        self.spent = 0.0
        """Seconds that watching took."""
        self.trained = 0.0
        """Seconds that training took without watching."""
        self._urgent_step: int | None = None
        self._last_run = dict.fromkeys(LEVEL_SHARES, first_step)
        self._costs: dict[Level, deque[float]] = {level: deque(maxlen=COST_WINDOW) for level in LEVEL_SHARES}
        self._steps: deque[float] = deque(maxlen=STEP_TIME_WINDOW)
        self._usual_step: float | None = None
        self._step_count = 0
        self._next_median = 0
        self._trace_seconds = self._base_seconds = 0.0
        self.loss_interval = 1
        """Steps from one recorded loss to the next."""
        self.hold_seconds = MIN_HOLD_SECONDS
        """Seconds that recorded losses wait for the writing thread."""
        self._loss_costs: deque[float] = deque(maxlen=LOSS_COST_WINDOW)
        self._writing_costs: deque[float] = deque(maxlen=WRITING_COST_WINDOW)
        self._ledger_seconds = self._ledger_price = 0.0
        self._last_followed = first_step
        self._planned_at = first_step
        self._intervals = dict.fromkeys(LEVEL_SHARES, 1)

    @property
    def step_seconds(self) -> float | None:
        """Seconds of a usual training step without watching; None before the first step."""
        return self._usual_step

    @property
    def overhead(self) -> float:
        """Seconds of watching per second of training."""
        return self.spent / self.trained if self.trained > 0 else 0.0

    @property
    def debt(self) -> float:
        """Seconds spent beyond what the budget has earned; what has a share of its own counts up to that share only."""
        earned = self.budget * self.trained
        excess = max(0.0, self._base_seconds - MAX_LOSS_SHARE * earned)
        excess += max(0.0, self._ledger_seconds - LEDGER_SHARE * earned)
        return self.spent - excess - earned

    def level(self, step: int) -> Level:
        """Return how closely to measure this step."""
        if step == self._urgent_step:
            return Level.TRACE
        if self.every is None and step < min(self.due.values()):  # by far the most frequent case
            return self.min_level
        if self.every is not None:
            level = self._level_by_interval(step - self.first_step, self.every)
        else:
            level = max((each for each, due in self.due.items() if step >= due), default=Level.LOSS)
        return max(min(level, self.max_level), self.min_level)

    def _level_by_interval(self, count: int, every: int) -> Level:
        if count % every == 0:
            return Level.TRACE
        return Level.BLOCKS if count % self.block_interval == 0 else Level.UPDATES

    def add_measurement(self, step: int, level: Level) -> None:
        """Note that this step was measured at this level, and when each level is due again."""
        for each in LEVEL_SHARES:
            if each <= level:
                self._last_run[each] = step
                self.due[each] = NEVER if each in self.unavailable else step + self._intervals[each]

    def add_cost(self, level: Level, seconds: float) -> None:
        """Charge one run of a level, without the levels below it."""
        self._costs[level].append(seconds)
        self.spent += seconds
        if level == Level.TRACE:
            self._trace_seconds += seconds

    def add_costs(self, costs: Mapping[Level, float]) -> None:
        """Charge what a measured step has cost, by level."""
        for level, seconds in costs.items():
            self.add_cost(level, seconds)

    def add_base_cost(self, seconds: float) -> None:
        """Charge what belongs to recording losses."""
        self._base_seconds += seconds
        self.spent += seconds

    def add_loss_cost(self, seconds: Sequence[float], skipped: int = 0) -> None:
        """Charge steps whose loss was recorded, by the seconds that were timed within each, and others in between."""
        self._loss_costs.extend(seconds)
        usual = statistics.median(self._loss_costs) if self._loss_costs else 0.0
        factor = SINGLE_LOSS_COST_FACTOR if skipped else LOSS_COST_FACTOR
        self.add_base_cost(usual * (factor * len(seconds) + SKIPPED_COST_FACTOR * skipped))

    def add_writing_cost(self, seconds: float) -> None:
        """Charge one time of handing losses to the writing thread, and what that thread took since the time before."""
        self._writing_costs.append(seconds)
        self.add_base_cost(seconds)

    def add_ledger_cost(self, seconds: float, steps: int = 0) -> None:
        """Charge the loop ledger; of `steps` followed steps, if it followed any."""
        self._ledger_seconds += seconds
        self.spent += seconds
        if steps:
            self._ledger_price = seconds / steps

    def affords_ledger(self, step: int, count: int) -> bool:
        """Whether to follow so many steps after this one."""
        earned = LEDGER_SHARE * self.budget * self.trained
        is_affordable = self._ledger_seconds + count * self._ledger_price <= earned or self.every is not None
        if not is_affordable and step < self._last_followed + MAX_LEDGER_REST:
            return False
        self._last_followed = step
        return True

    def add_step(self, seconds: float, count: int = 1, last: float | None = None) -> None:
        """Credit one training step without the time of watching, or so many that took these seconds together.

        `last` is the time of the last of them: a pause between the others does not make the usual step longer.
        """
        self._steps.append(seconds / count if last is None else last)
        self._step_count += count
        if self._usual_step is None or self._step_count >= self._next_median:
            self._usual_step = statistics.median(self._steps)
            self._next_median = self._step_count + STEP_TIME_WINDOW
        has_pause = seconds > (count - 1 + MIN_PAUSE_STEPS) * self._usual_step
        self.trained += count * self._usual_step if has_pause else seconds

    def skip_step(self) -> None:
        """Begin one step later than planned."""
        self.first_step += 1
        self.due = {level: step + 1 for level, step in self.due.items()}
        self._last_run = {level: step + 1 for level, step in self._last_run.items()}

    def trace_next(self, step: int) -> None:
        """Trace the step after this one at any cost."""
        self._urgent_step = step + 1

    def affords(self, seconds: float) -> bool:
        """True if the account holds this many seconds."""
        return self.debt + seconds <= 0

    def needs_plan(self, step: int, level: Level) -> bool:
        interval = min(PLAN_INTERVAL * self.loss_interval, MAX_LEDGER_REST)
        return self.every is None and (level > Level.ROW or step >= self._planned_at + interval)

    def plan(self, step: int) -> None:
        """Set the step at which each level is due next, after this step."""
        self._planned_at = step
        if self._steps:
            self._usual_step = statistics.median(self._steps)
        self._plan_losses()
        early = self.first_step + _next_power_of_two(step - self.first_step)
        debt = self.debt - MAX_CREDIT_STEPS * (self._usual_step or 0.0)
        self._intervals = self._plan_intervals()
        for level, interval in self._intervals.items():
            due = self._last_run[level] + interval
            if level == Level.TRACE:
                price = sum(self._price(each) for each in LEVEL_SHARES)  # a traced step runs every level
                self.due[level] = max(due, step + self._steps_to_earn(self.debt + price))
            else:
                due = min(due, early) if debt <= 0 else due
                self.due[level] = max(due, step + self._steps_to_earn(debt - self._trace_seconds))
        self.due |= dict.fromkeys(self.unavailable, NEVER)

    def _steps_to_earn(self, seconds: float) -> int:
        """Return the number of steps, at least 1, in which the budget earns this many seconds."""
        if not self._usual_step:
            return 1
        return max(1, math.ceil(seconds / (self.budget * self._usual_step)))

    def _price(self, level: Level) -> float:
        """Return the median cost of a level beyond the levels below it."""
        return statistics.median(self._costs[level]) if self._costs[level] else 0.0

    def _plan_losses(self) -> None:
        """Set how often a loss is recorded, and how long recorded ones wait."""
        step = self._usual_step
        if self.every is not None or not step or not self._loss_costs:
            return
        timed, writing = statistics.median(self._loss_costs), self._writing_price
        share = MAX_LOSS_SHARE * self.budget - SKIPPED_COST_FACTOR * timed / step
        hold = writing / (WRITING_SHARE * share) if share > 0 else MAX_HOLD_SECONDS
        self.hold_seconds = min(max(hold, MIN_HOLD_SECONDS), MAX_HOLD_SECONDS)
        left = step * (share - writing / max(self.hold_seconds, step))
        if LOSS_COST_FACTOR * timed <= left:
            self.loss_interval = 1
            return
        interval = math.ceil(SINGLE_LOSS_COST_FACTOR * timed / left) if left > 0 else MAX_LOSS_INTERVAL
        self.loss_interval = min(interval, MAX_LOSS_INTERVAL)

    @property
    def _writing_price(self) -> float:
        return statistics.fmean(self._writing_costs) if self._writing_costs else 0.0

    def _loss_seconds_per_step(self) -> float:
        """Return what losses take per step as planned."""
        timed = statistics.median(self._loss_costs) if self._loss_costs else 0.0
        step, interval = self._usual_step or 0.0, self.loss_interval
        factor = LOSS_COST_FACTOR if interval == 1 else SINGLE_LOSS_COST_FACTOR
        recording = timed * (factor + SKIPPED_COST_FACTOR * (interval - 1)) / interval
        return recording + self._writing_price * step / max(self.hold_seconds, step)

    def _plan_intervals(self) -> dict[Level, int]:
        pace = 1 - PAYBACK_SHARE if self.debt > 0 else 1.0
        left = self.budget * (self._usual_step or 0.0)
        ledger = self._ledger_seconds / max(1, self._step_count)
        left = pace * (left - self._loss_seconds_per_step() - min(ledger, LEDGER_SHARE * left))
        intervals = {}
        for level, share in LEVEL_SHARES.items():
            cost = self._price(level)
            intervals[level] = max(1, math.ceil(cost / max(share * left, 1e-12))) if cost else 1
            left -= cost / intervals[level]
        return intervals


def _next_power_of_two(step: int) -> int:
    """Return the first of 1, 2, 4, 8, ... that is greater than `step`."""
    return 1 << step.bit_length() if step > 0 else 1
