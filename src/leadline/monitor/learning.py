r"""Whether a recorded run has learned, judged from its losses.

The level at the beginning is the median of the first `FIRST_STEPS` losses, or the first loss if the loss jumps up
right after it, as it does with a rate that is far too high. The level at the end is the median of the last eighth of
the run. Each median of $n$ losses has the standard error $1.25\,\sigma/\sqrt{n}$, where $\sigma$ is the noise between
neighboring steps, so the fall between them has an interval. Positive losses are compared by their logarithms. A run
has learned if the whole interval is a fall, and the fall is large or still going on; it has not if the loss rose, or
if even the upper end of the interval is a small fall that has come to a halt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from leadline.checks._history import START_STEPS
from leadline.checks._statistics import MEDIAN_ERROR_RATIO, finite, medians, noise, rise_scale
from leadline.checks.run.loss_above_start import FIRST_STEPS, MIN_RELATIVE_RISE
from leadline.checks.run.plateau import MAX_RELATIVE_FALL, MAX_STUCK_FALL
from leadline.text import count, number, plural

# Derived: the two ends of a run, of START_STEPS each, must not overlap.
MIN_STEPS = 2 * START_STEPS
# Heuristic: parts of a run, of which the last is its end.
PARTS = 8
# Heuristic: half-width of an interval in standard errors; chance alone leaves it once in 370 runs.
INTERVAL_SIGMAS = 3.0
# Calibrated by benchmarks/alarms.py: healthy runs have left their start after as many steps.
MIN_STUCK_STEPS = 256

State = Literal["short", "learned", "rose", "stuck", "waiting", "noisy", "level"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """What the losses of a run say about whether it learned."""

    state: State
    """"waiting": it has not left its start yet; "level": a resumed run that neither fell nor rose."""
    sentence: str
    first: float = math.nan
    last: float = math.nan

    @property
    def is_undecided(self) -> bool:
        return self.state in ("short", "waiting", "noisy", "level")


def judge_learning(losses: Sequence[float], *, is_resumed: bool = False, made: int = 0) -> Learning:
    """Judge the losses of a run in their order. `is_resumed` if they do not begin with the first step of training.

    `made` is the number of steps, if the losses of some were not recorded.
    """
    values = finite(losses)
    recorded = f"{count(len(values))} of " if len(values) < made else ""
    steps = f"{recorded}{plural(max(len(values), made), 'step')}"
    if len(values) < MIN_STEPS:
        return Learning(state="short", sentence=f"{steps} with a loss are too few to judge")
    scaled, level = rise_scale(values)
    jumps = _jumps(scaled)
    first = values[0] if jumps else median(values[:FIRST_STEPS])
    last = median(values[-(len(values) // PARTS) :])
    fall, error = _fall(scaled, jumps=jumps)
    interval = (fall - INTERVAL_SIGMAS * error, fall + INTERVAL_SIGMAS * error)
    state = _state(scaled, level, interval, is_resumed=is_resumed)
    words = f"from {number(first)} to {number(last)} over {steps}"
    sentence = {
        "learned": f"the loss fell {words}",
        "rose": f"the loss rose {words}",
        "stuck": f"the loss went {words}: it has hardly left its start and no longer falls",
        "waiting": f"the loss went {words}: it has hardly left its start, but the run is short",
        "noisy": f"the loss went {words}, which is less than its noise between batches can hide",
        "level": f"the loss went {words} in a resumed run: its first steps are needed to say whether it learned",
    }[state]
    return Learning(state=state, sentence=sentence, first=first, last=last)


def _state(
    values: Sequence[float], level: float, interval: tuple[float, float], *, is_resumed: bool
) -> State:
    """Judge the fall between `interval[0]` and `interval[1]`, in units in which the loss is `level` large."""
    low, high = interval
    if high < -MIN_RELATIVE_RISE * level:
        return "rose"
    if low > MAX_STUCK_FALL * level or (low > 0 and is_falling(values, level)):
        return "learned"
    if is_resumed:
        return "level"
    if high > MAX_STUCK_FALL * level and low <= 0:
        return "noisy"
    return "stuck" if len(values) >= MIN_STUCK_STEPS else "waiting"


def is_falling(values: Sequence[float], level: float) -> bool:
    """Whether the loss falls in the second half of the run, by more than chance."""
    half = values[len(values) // 2 :]
    third, fourth = medians(half, 2)
    error = MEDIAN_ERROR_RATIO * noise(half) * math.sqrt(4 / len(half))  # of the difference of two medians
    return third - fourth > max(INTERVAL_SIGMAS * error, MAX_RELATIVE_FALL * level)


def _jumps(values: Sequence[float]) -> bool:
    """Whether the loss jumps up right after the first step."""
    return median(values[:FIRST_STEPS]) - values[0] > INTERVAL_SIGMAS * noise(values[:START_STEPS])


def _fall(values: Sequence[float], *, jumps: bool) -> tuple[float, float]:
    """Return the difference between the first level and the last, and its standard error."""
    early, last = values[: 1 if jumps else FIRST_STEPS], values[-(len(values) // PARTS) :]
    errors = (noise(values[:START_STEPS]) / math.sqrt(len(early)), noise(last) / math.sqrt(len(last)))
    return median(early) - median(last), MEDIAN_ERROR_RATIO * math.hypot(*errors)
