"""U531: the first steps of other trainings that went like this led nowhere."""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec.structs import replace

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_update
from leadline.checks._probability import MIN_TRAINING_PROBABILITY, read_outlook
from leadline.records import Profile, Rehearsal
from leadline.text import on_batches, plural


def _rehearsed(last: float) -> Profile:
    return replace(stack_with_update(), rehearsal=Rehearsal(losses=(2.3, 2.25, last), constant=2.2))


@check(code="U531", name="little-progress", since="0.2.0", sick=_rehearsed(2.22), healthy=_rehearsed(0.8))
def little_progress(profile: Profile) -> Iterator[Symptom]:
    r"""A training that begins like this one is more likely to fail than to work.

    ## What it measures
    The probability that the training reaches most of what a healthy network of its kind reaches. It is computed from
    six quantities of a rehearsal: how far the loss falls below that of a constant output, the same on samples that
    were not trained on, how far the loss on those is above it instead, the share of the progress in that of a plain
    recipe, how many steps it took, and the part of every weight that decay removes per step. Fires below
    `MIN_TRAINING_PROBABILITY` = 0.5. Every other finding that is worse than a note explains it.

    ## Why it hurts
    The probability was fitted to the outcomes of hundreds of trainings of many kinds of networks. Those that began
    like this one mostly ended near a constant output.

    ## When it is wrong
    About as often as the probability says; `docs/lab-notes/atlas.md` has the figures for kinds of networks that were
    not used for the fit. Trainings of many thousands of steps are not among them.

    ## References
    `benchmarks/atlas`; MacKay, "The evidence framework applied to classification networks", 1992.
    """
    rehearsal, outlook = profile.rehearsal, read_outlook(profile)
    if rehearsal is None or outlook is None or outlook.probability >= MIN_TRAINING_PROBABILITY:
        return
    constant = rehearsal.constant
    compared = "" if constant is None else f", where a constant output has {constant:.3g}"
    last = f"{rehearsal.last:.3g}" if math.isfinite(rehearsal.last) else "NaN or infinity"
    place = on_batches(rehearsal.batches, is_split=rehearsal.is_split)
    yield Symptom(
        severity="warning",
        where="the loss",
        message=f"{plural(rehearsal.steps, 'step')} {place} took the loss from "
        f"{rehearsal.first:.3g} to {last}{compared}: {100 * outlook.probability:.0f} % of trainings that begin like "
        "this work",
        action="Run `leadline fix` to search for a change with which it learns, and look at what the network is asked.",
        evidence={
            "probability": outlook.probability,
            **{term.name: term.log_odds for term in outlook.terms},
        },
    )
