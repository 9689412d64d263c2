"""N704: updates that rounding swallows."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from leadline.records import Facts, Precision, Profile
from leadline.rules.pace import paced, step_of
from leadline.rules.rule import Symptom, rule

HALF_STEP = {
    "bfloat16": 2.0**-9,
    "float16": 2.0**-12,
}  # half the relative spacing, on average; derived: 8 and 11 bits


def _example(dtype: str) -> Profile:
    precision = Precision(
        dtype=dtype,
        parameters=dtype,
        tiny=1e-40,
        huge=3e38,
        largest=1.0,
        largest_at="",
        lost=0.0,
        lost_at="",
    )
    plain = paced(relative=5e-4)
    facts = msgspec.structs.replace(plain.facts or Facts(), precision=precision)
    return msgspec.structs.replace(plain, facts=facts)


@rule(
    code="N704",
    name="lost-updates",
    since="0.1",
    sick=_example("bfloat16"),
    healthy=_example("float32"),
)
def lost_updates(profile: Profile) -> Iterator[Symptom]:
    r"""Weights are kept in half precision, and steps are smaller than the spacing of its numbers.

    ## What it measures
    The median over matrices of the first step's size over the weight's, against half the relative spacing of the dtype
    in which the parameters are kept: $2^{-9}$ for bfloat16, $2^{-12}$ for float16.

    ## Why it hurts
    A weight plus a step that is smaller than half the distance to the next number is the same weight: most updates are
    rounded away, and training stands still though gradients are fine.

    ## When it is wrong
    With stochastic rounding, or an optimiser that keeps a float32 copy or the rounding error.

    ## References
    Micikevicius et al., "Mixed precision training", 2018, section 3.1 (the reason for a float32 master copy).
    """
    step = step_of(profile)
    precision = profile.facts.precision if profile.facts else None
    if step is None or precision is None or precision.parameters not in HALF_STEP:
        return
    limit = HALF_STEP[precision.parameters]
    if step.relative < limit:
        yield Symptom(
            severity="warning",
            where="the optimiser",
            message=f"steps are {step.relative:.2g} of the weights' size, and {precision.parameters} rounds changes "
            f"below {limit:.2g} away: keep a float32 copy of the weights",
            evidence={"relative_step": step.relative, "half_spacing": limit},
        )
