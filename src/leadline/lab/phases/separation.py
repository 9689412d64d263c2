"""How well "shallower than so many times theory's reach" tells the networks that trained from those that did not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from leadline.report.phases.record import Separation

Judged = Sequence[tuple[float, bool]]
"""Load of a network, and whether it trained."""


def separate(columns: Sequence[Judged], stated: float) -> Separation:
    """`columns` in the order of their values. None where all networks trained, or none did."""
    every = [each for column in columns for each in column]
    fitted_on = [each for column in columns[::2] for each in column]
    judged_on = [each for column in columns[1::2] for each in column]
    fitted = best_multiple(fitted_on)
    return Separation(
        stated=stated,
        at_stated=balanced(every, stated),
        fitted=fitted,
        at_fitted=None if fitted is None else balanced(judged_on, fitted),
        networks=len(every),
    )


def balanced(judged: Judged, multiple: float) -> float | None:
    """The mean of two shares: of those that trained, how many have a lower load; of the others, how many do not."""
    trained = [load < multiple for load, good in judged if good]
    failed = [load >= multiple for load, good in judged if not good]
    if not trained or not failed:
        return None
    return (sum(trained) / len(trained) + sum(failed) / len(failed)) / 2


def best_multiple(judged: Judged) -> float | None:
    """The multiple with the highest balanced accuracy; in the middle, where several are equally good."""
    loads = sorted({load for load, _ in judged if 0 < load < math.inf})
    between = [math.sqrt(low * high) for low, high in pairwise(loads)]
    scored = [(score, each) for each in between if (score := balanced(judged, each)) is not None]
    if not scored:
        return None
    best = max(score for score, _ in scored)
    equal = [each for score, each in scored if score == best]
    return equal[len(equal) // 2]
