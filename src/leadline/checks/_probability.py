r"""The probability that a training works, from six quantities of its first steps.

The quantities $x_i$ go through a logistic model with a bias, $z = b + \sum_i w_i x_i$. The weights were fitted to the
outcomes of real trainings (`python -m benchmarks.atlas fit`), and each family of networks was predicted by weights
that were fitted without it. The covariance of the weights gives the variance $v$ of $z$, which is large for a case
unlike those of the fit. It moves the probability toward one half (MacKay 1992, equation 14):
$$ P = 1 / (1 + e^{-z / \sqrt{1 + \pi v / 8}}). $$
"""

from __future__ import annotations

import json
import math
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from leadline.checks._steps import decay_per_step
from leadline.records import Outlook, OutlookTerm, Profile, Rehearsal
from leadline.records.rehearsal import MAX_REHEARSAL_STEPS, MIN_REFERENCE_PROGRESS

FITTED_MODEL = "probability.json"
# Derived: more likely than not.
MIN_TRAINING_PROBABILITY = 0.5
# Heuristic: bounds of progress; more than 80 % is as good as any, and above the loss to beat all is lost.
PROGRESS_BOUNDS = (-0.1, 0.8)
# Heuristic: less is enough on samples that were not trained on, whose loss may end higher at first.
HELD_OUT_BOUNDS = (-0.2, 0.4)
# Heuristic: a loss of a hundred times that of a constant output is as bad as any.
MAX_EXCESS = 2.0
# Derived: the shortest rehearsal, whose quantity is 0; that of the longest is 1.
FEW_STEPS = 8
# Derived: half-way between a training as good as its reference and one that learns nothing.
UNKNOWN_REFERENCE_SHARE = 0.5
# Derived: a decay of one thousandth per step, which is much, has a quantity of 0.3, and a tenth of it next to nothing.
DECAY_UNIT = 1e-3


class FittedModel(NamedTuple):
    """Bias, weights by name of their quantity, and the covariance of both in this order."""

    bias: float
    weights: dict[str, float]
    covariance: list[list[float]]


def read_outlook(profile: Profile) -> Outlook | None:
    """The probability that the training works, with the part of each quantity in it; None without a rehearsal."""
    measured = quantities(profile)
    return None if measured is None else predict(measured, fitted_model())


def quantities(profile: Profile) -> dict[str, float] | None:
    """What the probability depends on; None without a rehearsal."""
    rehearsal = profile.rehearsal
    if rehearsal is None:
        return None
    progress, steps = _progress(rehearsal, rehearsal.last), rehearsal.steps_to_fall_far
    return {
        "progress": _bounded(progress, PROGRESS_BOUNDS),
        "progress on other samples": _bounded(_held_out_progress(rehearsal, progress), HELD_OUT_BOUNDS),
        "excess on other samples": _excess(rehearsal),
        "share of a plain recipe's progress": _share_of_reference(rehearsal),
        "steps": math.log(max(steps, FEW_STEPS) / FEW_STEPS, MAX_REHEARSAL_STEPS / FEW_STEPS),
        "weight decay": math.log10(1 + decay_per_step(profile) / DECAY_UNIT),
    }


def predict(measured: dict[str, float], model: FittedModel) -> Outlook:
    """The outlook for these quantities."""
    terms = tuple(
        OutlookTerm(name=name, value=measured[name], log_odds=weight * measured[name])
        for name, weight in model.weights.items()
    )
    z = model.bias + sum(term.log_odds for term in terms)
    row = [1.0, *(measured[name] for name in model.weights)]
    variance = sum(
        a * b * value
        for a, values in zip(row, model.covariance, strict=True)
        for b, value in zip(row, values, strict=True)
    )
    probability = 1 / (1 + math.exp(-z / math.sqrt(1 + math.pi * variance / 8)))
    return Outlook(probability=probability, bias=model.bias, terms=terms, variance=variance)


@cache
def fitted_model() -> FittedModel:
    return FittedModel(**json.loads(files(__package__).joinpath(FITTED_MODEL).read_text("utf-8")))


def _progress(rehearsal: Rehearsal, loss: float) -> float:
    """Progress, also where no positive loss is to beat: then relative to the size of that loss."""
    start, floor = rehearsal.to_beat, rehearsal.floor
    if not math.isfinite(loss) or not math.isfinite(start):
        return -math.inf
    way = start - floor if start > floor else abs(start) or 1.0
    return (start - loss) / way


def _held_out_progress(rehearsal: Rehearsal, progress: float) -> float:
    """Progress on samples that were not trained on, in evaluation mode; 0 if nothing is known about them.

    No more counts than the `progress` on those that were: the others may be easier, such as half of a small batch.

    Where no reference makes any either, the data may have nothing in common (random numbers, say), so that learning by
    heart is all there is.
    """
    if rehearsal.held_out is None or (rehearsal.references and not rehearsal.generalizes):
        return 0.0
    return min(_progress(rehearsal, rehearsal.held_out), max(progress, 0.0))


def _excess(rehearsal: Rehearsal) -> float:
    """How many powers of ten the loss on other samples is above the loss to beat; 0 if nothing is known about them."""
    held_out, start = rehearsal.held_out, rehearsal.to_beat
    if held_out is None or not 0 < start < math.inf:
        return 0.0
    if not math.isfinite(held_out):
        return MAX_EXCESS
    return _bounded(math.log10(max(held_out, start) / start), (0.0, MAX_EXCESS))


def _share_of_reference(rehearsal: Rehearsal) -> float:
    """The progress over that of the better reference after as many steps; 1 if the answer was clear without one.

    What counts is the progress on samples that were not trained on, if a reference makes any.
    """
    if not rehearsal.references:
        return 1.0 if rehearsal.is_clear else UNKNOWN_REFERENCE_SHARE
    held_out_share = rehearsal.held_out_share
    if held_out_share is not None:
        return _bounded(held_out_share, (0.0, 1.0))
    shares = []
    for run in rehearsal.references:
        reached = _progress(rehearsal, rehearsal.end_of(run))
        if reached > MIN_REFERENCE_PROGRESS:
            progress = _progress(rehearsal, rehearsal.after(len(run.losses) - 1).last)
            shares.append(_bounded(progress / reached, (0.0, 1.0)))
    return min(shares, default=UNKNOWN_REFERENCE_SHARE)


def _bounded(value: float, bounds: tuple[float, float]) -> float:
    low, high = bounds
    return min(max(value, low), high)
