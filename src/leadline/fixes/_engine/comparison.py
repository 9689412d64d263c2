r"""Decide which of two trainings ends lower, beyond their noise.

Both saw the same batches with the same random numbers, so they are compared step by step. Let $u_t$ be the loss of the
untreated and $v_t$ that of the treated model, over the $n$ steps of the last quarter, and $d_t = u_t - v_t$. The
treated model ends lower if the interquartile mean of all $d_t$ exceeds `MIN_GAIN_SIGMAS` of its standard errors and
`MIN_RELATIVE_GAIN` of the untreated loss. The interquartile mean is used because a spike of a training that is about to
diverge must neither create nor hide a difference; the standard error comes from the quartiles for the same reason,
$(q_3 - q_1) / 1.349 / \sqrt n$. It also ends lower if it is lower at every one of at least `MIN_ALWAYS_LOWER_STEPS`
steps, because an untreated loss may be too noisy for any mean. A treated model whose loss is still unstable, while that
of the untreated one is not, does not count as trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from leadline.records import Trial
from leadline.records.rehearsal import MAX_START_MULTIPLE

# Derived: 95 % of a normal distribution. What passes by chance meets another seed in the confirmation.
MIN_GAIN_SIGMAS = 2.0

# Derived: distance between the quartiles of a normal distribution, in standard deviations.
QUARTILE_DISTANCE = 1.349

# Heuristic: a loss that halves falls beyond its noise, also if it does so within the first quarter.
MAX_SHARE_AFTER_FALL = 0.5

# Derived: of two equals, one is lower five times in a row in 3 % of cases.
MIN_ALWAYS_LOWER_STEPS = 5

# Heuristic: less than one percent is not worth an edit, however certain it is.
MIN_RELATIVE_GAIN = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialComparison:
    """How a trial ended."""

    lower: bool
    """Whether the treated model learns, and ends lower than the untreated one."""
    untreated: float
    """Final loss of the untreated model."""
    treated: float
    why: str
    """The decision in words, with its numbers."""
    is_open: bool = False
    """Whether it ends lower and stays stable, but does not fall beyond its own noise in so few steps."""


def compare(trial: Trial) -> TrialComparison:
    """Whether the treated model learns, and ends lower than the untreated one."""
    untreated, treated = final_loss(trial.untreated), final_loss(trial.treated)
    lower, why = _decide(trial, untreated, treated)
    is_open = not lower and is_stable(trial.treated) and is_stable(trial.untreated) and _ends_lower(trial)
    return TrialComparison(lower=lower, untreated=untreated, treated=treated, why=why, is_open=is_open)


def judge_alone(losses: Sequence[float], constant: float | None) -> TrialComparison:
    """Whether a training learns whose loss cannot be compared with that of the untreated model.

    It must fall beyond noise and end below the loss of its own best constant output; without one, nothing is proved.
    """
    last = final_loss(losses)
    steps = len(losses)
    numbers = f"loss {losses[0] if losses else math.nan:.4g} to {last:.4g} in {steps} steps"
    if constant is None:
        return TrialComparison(
            lower=False,
            untreated=math.nan,
            treated=last,
            why=f"{numbers}, and no constant output to compare it with",
        )
    falls = learns(losses) or last < MAX_SHARE_AFTER_FALL * losses[0]
    is_below = is_stable(losses) and falls and last < (1 - MIN_RELATIVE_GAIN) * constant
    place = "below" if is_below else "not clearly below"
    constant_words = f"that of its best constant output, {constant:.4g}"
    why = f"the probe is silent, and the new loss is {place} {constant_words} ({numbers})"
    return TrialComparison(lower=is_below, untreated=math.nan, treated=last, why=why)


def final_loss(losses: Sequence[float]) -> float:
    """The interquartile mean of the last quarter; the last loss if it is not finite, NaN if there is none."""
    if not losses:
        return math.nan
    return interquartile_mean(losses[-quarter_length(losses) :]) if math.isfinite(losses[-1]) else losses[-1]


def quarter_length(losses: Sequence[float]) -> int:
    return max(len(losses) // 4, 1)


def learns(losses: Sequence[float]) -> bool:
    """Whether the last quarter is lower than the first by more than `MIN_GAIN_SIGMAS` standard errors of the two.

    A loss that falls to its floor within the first quarter scatters there as far as it falls. It counts as learning if
    every loss of the last quarter is below `MAX_SHARE_AFTER_FALL` of the first loss.
    """
    count = quarter_length(losses)
    first, last = losses[:count], losses[-count:]
    if not losses or not all(map(math.isfinite, losses)):
        return False
    if max(last) < MAX_SHARE_AFTER_FALL * losses[0] and count >= MIN_ALWAYS_LOWER_STEPS:
        return True
    fall = interquartile_mean(first) - interquartile_mean(last)
    return fall > MIN_GAIN_SIGMAS * math.hypot(_standard_error(first), _standard_error(last))


def is_unstable(losses: Sequence[float]) -> bool:
    """Whether the loss still jumps far above its start in the second half: such a training may diverge at any time."""
    late = losses[len(losses) // 2 :]
    return bool(late) and losses[0] > 0 and not max(late) <= MAX_START_MULTIPLE * losses[0]


def is_stable(losses: Sequence[float]) -> bool:
    """Whether the loss stayed finite and is not unstable."""
    return bool(losses) and math.isfinite(losses[-1]) and not is_unstable(losses)


def _decide(trial: Trial, untreated: float, treated: float) -> tuple[bool, str]:
    steps = len(trial.treated)
    if not math.isfinite(treated):
        return False, f"training with it diverges after {steps} steps (loss {treated})"
    if is_unstable(trial.treated) and math.isfinite(untreated) and not is_unstable(trial.untreated):
        start, peak = trial.treated[0], max(trial.treated)
        return False, f"the loss is unstable with it: it starts at {start:.4g} and rises to {peak:.4g}"
    if not learns(trial.treated):
        first = interquartile_mean(trial.treated[: quarter_length(trial.treated)])
        fall = f"{first:.4g} to {treated:.4g} in {steps} steps"
        return False, f"the loss does not fall beyond noise with it ({fall})"
    if not math.isfinite(untreated):
        diverged = len(trial.untreated)
        return True, f"loss {treated:.4g} after {steps} steps; without it training diverges after {diverged}"
    numbers = f"loss {treated:.4g} after {steps} steps, {untreated:.4g} without it"
    if _ends_lower(trial):
        return True, numbers
    return False, f"{numbers}: the difference does not exceed {_margin(trial):.2g}, which may be noise"


def _ends_lower(trial: Trial) -> bool:
    """Whether the last quarter is lower than without the fix, beyond noise."""
    if not math.isfinite(final_loss(trial.untreated)):
        return True
    return _gain(trial)[0] > _margin(trial) or _is_always_lower(trial)


def _margin(trial: Trial) -> float:
    """What the difference must exceed."""
    return max(MIN_GAIN_SIGMAS * _gain(trial)[1], MIN_RELATIVE_GAIN * abs(final_loss(trial.untreated)))


def _is_always_lower(trial: Trial) -> bool:
    """Whether it is lower at every step of the last quarter, so that noise of the untreated loss does not matter."""
    pairs = _last_quarter(trial)
    always = all(other < one - MIN_RELATIVE_GAIN * abs(one) for one, other in pairs)
    return len(pairs) >= MIN_ALWAYS_LOWER_STEPS and always


def _last_quarter(trial: Trial) -> list[tuple[float, float]]:
    """Untreated and treated loss at each step of the last quarter."""
    return list(zip(trial.untreated, trial.treated, strict=False))[-quarter_length(trial.treated) :]


def _gain(trial: Trial) -> tuple[float, float]:
    """The difference over the last quarter, and its standard error."""
    differences = [one - other for one, other in _last_quarter(trial)]
    return interquartile_mean(differences), _standard_error(differences)


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean of the middle half of the values."""
    quarter = len(values) // 4
    return fmean(sorted(values)[quarter : len(values) - quarter])


def _standard_error(values: Sequence[float]) -> float:
    """The standard error of the mean, from the quartiles."""
    ordered, quarter = sorted(values), len(values) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / QUARTILE_DISTANCE / math.sqrt(len(values))
