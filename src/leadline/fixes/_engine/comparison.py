r"""Which of two trainings ends lower, beyond their noise.

Both saw the same batches with the same random numbers, so that they are compared step by step. With $u_t$ the loss of
the untreated and $v_t$ that of the treated model, over the $n$ steps of the last quarter: the treated model ends lower
if the mean of the middle half of all $d_t = u_t - v_t$ exceeds `SIGMAS` of its standard errors and `LEAST` of the size
of the untreated loss. The middle half, because a spike of a training that is about to break must neither make nor hide
a difference; the standard error comes from the quartiles for the same reason, $(q_3 - q_1) / 1.349 / \sqrt n$. Or if it
is lower at every single one of at least `ALWAYS` steps, for an untreated loss may be too wild for any mean. But a
treated model whose loss is still thrown about, where that of the untreated one is not, does not count as trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from leadline.records import Trial
from leadline.records.update import MAX_START_MULTIPLE

SIGMAS = (
    2.0  # derived: 95 % of a normal distribution; what slips through meets another seed in the last trial
)
QUARTILES = 1.349  # derived: distance of the quartiles of a normal distribution in standard deviations
ALWAYS = 5  # derived: of equals, one is the lower one five times running in 3 % of cases
LEAST = 0.01  # ours: less than one percent is not worth an edit, however certain


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How a trial ended."""

    lower: bool
    untreated: float
    """Loss of its last quarter, on average of the middle half; what it ended with, if that is not a finite number."""
    treated: float
    why: str
    """The numbers in words."""


def compare(trial: Trial) -> Comparison:
    """Does the treated model learn, and end lower than the untreated one?"""
    untreated, treated = end(trial.untreated), end(trial.treated)
    lower, why = _decide(trial, untreated, treated)
    return Comparison(lower=lower, untreated=untreated, treated=treated, why=why)


def end(losses: Sequence[float]) -> float:
    """The last quarter, on average of its middle half; what training ended with, if that is no finite number."""
    if not losses:
        return math.nan
    return middle(losses[-quarter(losses) :]) if math.isfinite(losses[-1]) else losses[-1]


def quarter(losses: Sequence[float]) -> int:
    return max(len(losses) // 4, 1)


def learns(losses: Sequence[float]) -> bool:
    """Its own last quarter is lower than its first, by more than `SIGMAS` standard errors of the two."""
    count = quarter(losses)
    first, last = losses[:count], losses[-count:]
    if not all(map(math.isfinite, losses)):
        return False
    return middle(first) - middle(last) > SIGMAS * math.hypot(_error(first), _error(last))


def thrown(losses: Sequence[float]) -> bool:
    """In the second half the loss still jumps far above where it began: such a training holds by luck."""
    late = losses[len(losses) // 2 :]
    return bool(late) and losses[0] > 0 and not max(late) <= MAX_START_MULTIPLE * losses[0]


def steady(losses: Sequence[float]) -> bool:
    """It neither broke nor is thrown about."""
    return bool(losses) and math.isfinite(losses[-1]) and not thrown(losses)


def _decide(trial: Trial, untreated: float, treated: float) -> tuple[bool, str]:
    steps = len(trial.treated)
    if not math.isfinite(treated):
        return False, f"training with it breaks after {steps} steps (loss {treated})"
    if thrown(trial.treated) and math.isfinite(untreated) and not thrown(trial.untreated):
        worst = max(trial.treated)
        return False, f"with it the loss is thrown about: from {trial.treated[0]:.4g} up to {worst:.4g}"
    if not learns(trial.treated):
        first = middle(trial.treated[: quarter(trial.treated)])
        return (
            False,
            f"with it the loss does not fall beyond noise ({first:.4g} to {treated:.4g} in {steps} steps)",
        )
    if not math.isfinite(untreated):
        broke = len(trial.untreated)
        return True, f"loss {treated:.4g} after {steps} steps; without it training breaks after {broke}"
    gain, noise = _gain(trial)
    margin = max(SIGMAS * noise, LEAST * abs(untreated))
    told = f"loss {treated:.4g} after {steps} steps, {untreated:.4g} without it"
    if gain > margin or _always_lower(trial):
        return True, told
    return False, f"{told}: not lower by more than {margin:.2g}, which may be noise"


def _always_lower(trial: Trial) -> bool:
    """At every step of the last quarter, by `LEAST`: then no noise of the untreated loss matters, however wild."""
    pairs = _last(trial)
    return len(pairs) >= ALWAYS and all(other < one - LEAST * abs(one) for one, other in pairs)


def _last(trial: Trial) -> list[tuple[float, float]]:
    """Both losses at the steps of the last quarter."""
    return list(zip(trial.untreated, trial.treated, strict=False))[-quarter(trial.treated) :]


def _gain(trial: Trial) -> tuple[float, float]:
    """Difference over the last quarter, and its standard error."""
    differences = [one - other for one, other in _last(trial)]
    return middle(differences), _error(differences)


def middle(values: Sequence[float]) -> float:
    """The mean of the middle half: a quarter is left out at either end."""
    out = len(values) // 4
    return fmean(sorted(values)[out : len(values) - out])


def _error(values: Sequence[float]) -> float:
    """The standard error of their mean, by the quartiles."""
    ordered, out = sorted(values), len(values) // 4
    return (ordered[-1 - out] - ordered[out]) / QUARTILES / math.sqrt(len(values))
