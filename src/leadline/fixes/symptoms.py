"""What to try where no finding names the cause: by how the training itself goes wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from leadline.fixes.candidates import Candidate, in_order, proposed
from leadline.fixes.comparison import thrown
from leadline.fixes.fix import Fix, Patient
from leadline.fixes.rates import rate_candidate
from leadline.fixes.trial import Losses

Symptom = Literal["breaks", "stays"]
SAYS: dict[Symptom, str] = {
    "breaks": "the loss breaks or is thrown about",
    "stays": "the loss stays near that of a constant output",
}
USUAL: dict[Symptom, tuple[str, ...]] = {
    "breaks": ("B202", "B205", "F101", "U501", "U502", "U503", "U504", "U509", "U521", "U523", "R401", "N70"),
    "stays": ("B201", "B205", "F102", "F104", "F106", "I301", "I302", "R401", "R402", "U505", "U509"),
}
"""Findings that are behind it as a rule: fixes that answer one of these are tried."""
RATES: dict[Symptom, tuple[float, ...]] = {
    "breaks": (0.1, 0.01),
    "stays": (10.0, 0.1, 0.01),
}
"""Factors on the rate, the likelier first: a loss that stays may have a rate that is too small, or far too large."""


def symptom_of(losses: Losses) -> Symptom:
    """How a training that did not get where it should went."""
    broke = not losses or not math.isfinite(losses[-1]) or thrown(losses)
    return "breaks" if broke else "stays"


def by_symptom(patient: Patient, fixes: Sequence[Fix], losses: Losses) -> list[Candidate]:
    """Plans for how the training went, in the order in which to try them. They answer no finding, and say so."""
    symptom = symptom_of(losses)
    return in_order([*_rates(patient, symptom), *_plans(patient, fixes, symptom)])


def _rates(patient: Patient, symptom: Symptom) -> Iterator[Candidate]:
    factors = RATES[symptom] if patient.case.optimizer is not None else ()
    for place, factor in enumerate(factors):
        yield rate_candidate(factor, promise=0.95 - place / 10)


def _plans(patient: Patient, fixes: Sequence[Fix], symptom: Symptom) -> Iterator[Candidate]:
    for fix in fixes:
        usual = any(code.startswith(fix.answers) for code in USUAL[symptom])
        if usual and fix.name != "learning-rate":
            for each in proposed(fix, patient, (), rooted=True):
                if each.edits and not each.why:
                    yield replace(each, answers=())
