"""Candidates for a network that does not learn, where no finding names the cause or no fix for the findings helps.

A check can be wrong, and so can the order of the fixes it asks for. So how a training fails also chooses fixes, and at
last everything that a plain recipe would do differently is done at once: all parameters train, in float32, from the
initial values of torch, on inputs and targets of unit size, with Adam, little dropout and no weight decay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Literal

from leadline.fixes._engine.candidates import Candidate, candidates_of, combine, sort_candidates
from leadline.fixes._engine.comparison import is_unstable
from leadline.fixes._engine.fix import Fix, FixContext
from leadline.fixes._engine.lookup import ADAM_RATES, family
from leadline.fixes._engine.proofs import rate_candidate
from leadline.fixes._engine.trial import Losses

GENERIC_CODES = ("U530", "U531")
"""Findings that a network does not learn, for whatever reason: fixes that answer them need no other finding."""
TrainingFailure = Literal["diverges", "stays"]
"""How a training fails: its loss diverges or is unstable, or it stays near that of a constant output."""
USUAL_CODES: dict[TrainingFailure, tuple[str, ...]] = {
    "diverges": (
        *("B202", "B205", "F101", "U501", "U502", "U503", "U504", "U509", "U521", "U523", "R401", "N70"),
        *GENERIC_CODES,
    ),
    "stays": (
        *("B201", "B205", "F102", "F104", "F106", "I301", "I302", "R401", "R402", "U505", "U509"),
        *GENERIC_CODES,
    ),
}
"""Findings that usually cause such a failure: fixes that answer one of them are tried."""
# Heuristic: a decade apart; a diverging training needs a lower rate, one that stays put may need either.
RATE_FACTORS: dict[TrainingFailure, tuple[float, ...]] = {
    "diverges": (0.1, 0.01),
    "stays": (10.0, 0.1, 0.01),
}
"""Factors on the rate, the likelier first: where the loss stays, the rate may be too small, or far too large."""


def training_failure(losses: Losses) -> TrainingFailure:
    """How a training that did not learn failed."""
    diverged = not losses or not math.isfinite(losses[-1]) or is_unstable(losses)
    return "diverges" if diverged else "stays"


def find_candidates_by_failure(context: FixContext, fixes: Sequence[Fix], losses: Losses) -> list[Candidate]:
    """Plans for the way a training failed, in the order in which to try them. They answer no finding."""
    failure = training_failure(losses)
    return sort_candidates([*_rate_candidates(context, failure), *_usual_candidates(context, fixes, failure)])


def _rate_candidates(context: FixContext, failure: TrainingFailure) -> Iterator[Candidate]:
    factors = RATE_FACTORS[failure] if context.case.optimizer is not None else ()
    for place, factor in enumerate(factors):
        yield rate_candidate(factor, promise=0.95 - place / 10)


def _usual_candidates(
    context: FixContext, fixes: Sequence[Fix], failure: TrainingFailure
) -> Iterator[Candidate]:
    for fix in fixes:
        is_usual = any(code.startswith(fix.answers) for code in USUAL_CODES[failure])
        if is_usual and fix.name != "learning-rate":
            yield from _edits_of(fix, context)


# A plain recipe: what most networks learn with.

PLAIN_FIXES = (
    *("complete-optimizer", "thaw", "full-precision", "lower-dropout", "standardize", "scaled-targets"),
    *("default-init", "weight-decay", "usual-options", "plain-adam"),
)
"""Fixes that each bring a training closer to a plain recipe, in the order in which their edits are made."""


def plain_recipes(context: FixContext, fixes: Sequence[Fix]) -> list[tuple[Candidate, ...]]:
    """The parts of a plain recipe, once for each rate of Adam; only parts that change something, and only several."""
    by_name = {each.name: each for each in fixes}
    parts: list[Candidate] = []
    rates: list[Candidate] = []
    for name in PLAIN_FIXES:
        plans = list(_edits_of(by_name[name], context)) if name in by_name else []
        if name == "plain-adam":
            rates = plans
        elif name == "weight-decay":
            parts += [each for each in plans if each.edits[0].options.get("most") == 0.0]
        else:
            parts += plans[:1]
    if rates:  # Adam comes without decay and with usual options
        parts = [each for each in parts if each.fix not in ("weight-decay", "usual-options")]
    rates = rates or list(_adam_rates(context))
    recipes = [(*parts, each) for each in rates] if rates else [tuple(parts)]
    return [each for each in recipes if len(each) > 1]


def _adam_rates(context: FixContext) -> Iterator[Candidate]:
    """The usual rates of Adam for an optimizer that is one already."""
    optimizer = context.profile.optimizer
    rate = optimizer.groups[0].lr if optimizer is not None and optimizer.groups else None
    if rate and family(context) == "adam":
        yield from (rate_candidate(each / rate) for each in ADAM_RATES)


def combine_all(parts: Sequence[Candidate]) -> Candidate:
    """All parts as one candidate."""
    return reduce(combine, parts)


def _edits_of(fix: Fix, context: FixContext) -> Iterator[Candidate]:
    """The candidates of a fix that change something. They answer no finding."""
    for candidate in candidates_of(fix, context, (), rooted=True):
        if candidate.edits and not candidate.why:
            yield replace(candidate, answers=())
