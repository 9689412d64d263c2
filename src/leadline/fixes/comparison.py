r"""Which of two trainings ends lower, beyond their noise.

Both saw the same batches with the same random numbers, so that they are compared step by step. With $u_t$ the loss of
the untreated and $v_t$ that of the treated model, over the $n$ steps of the last quarter: the treated model ends lower
if the mean of $u_t - v_t$ exceeds `SIGMAS` of its standard errors and `LEAST` of the size of the untreated loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from leadline.records import Trial

SIGMAS = (
    2.0  # derived: 95 % of a normal distribution; what slips through meets another seed in the last trial
)
LEAST = 0.01  # ours: less than one percent is not worth an edit, however certain


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How a trial ended."""

    lower: bool
    untreated: float
    """Mean loss of its last quarter; what it ended with, if that is not a finite number."""
    treated: float
    why: str
    """The numbers in words."""


def compare(trial: Trial) -> Comparison:
    """Does the treated model learn, and end lower than the untreated one?"""
    untreated, treated = end(trial.untreated), end(trial.treated)
    lower, why = _decide(trial, untreated, treated)
    return Comparison(lower=lower, untreated=untreated, treated=treated, why=why)


def end(losses: Sequence[float]) -> float:
    """The mean of the last quarter; the last loss if that is no finite number, for there the training ended."""
    if not losses:
        return math.nan
    return fmean(losses[-quarter(losses) :]) if math.isfinite(losses[-1]) else losses[-1]


def quarter(losses: Sequence[float]) -> int:
    return max(len(losses) // 4, 1)


def learns(losses: Sequence[float]) -> bool:
    """Its own last quarter is lower than its first."""
    return math.isfinite(end(losses)) and end(losses) < fmean(losses[: quarter(losses)])


def _decide(trial: Trial, untreated: float, treated: float) -> tuple[bool, str]:
    steps = len(trial.treated)
    if not math.isfinite(treated):
        return False, f"training with it breaks after {steps} steps (loss {treated})"
    if not learns(trial.treated):
        first = fmean(trial.treated[: quarter(trial.treated)])
        return False, f"with it the loss does not fall ({first:.4g} to {treated:.4g} in {steps} steps)"
    if not math.isfinite(untreated):
        broke = len(trial.untreated)
        return True, f"loss {treated:.4g} after {steps} steps; without it training breaks after {broke}"
    gain, noise = _gain(trial)
    margin = max(SIGMAS * noise, LEAST * abs(untreated))
    told = f"loss {treated:.4g} after {steps} steps, {untreated:.4g} without it"
    if gain > margin:
        return True, told
    return False, f"{told}: not lower by more than {margin:.2g}, which may be noise"


def _gain(trial: Trial) -> tuple[float, float]:
    """Mean of the differences over the last quarter, and its standard error."""
    count = quarter(trial.treated)
    pairs = list(zip(trial.untreated, trial.treated, strict=False))[-count:]
    differences = [one - other for one, other in pairs]
    error = stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return fmean(differences), error
