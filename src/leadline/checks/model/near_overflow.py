"""N703: numbers close to the largest of the dtype."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with
from leadline.records import Facts, Margin, Precision, Profile

MARGIN = (
    8.0  # times the largest number seen; ours: training moves sizes by a few times within the first steps
)


def _example(largest: float) -> Profile:
    return stack_with(
        Facts(
            precision=Precision(
                dtype="float16",
                parameters="float16",
                tiny=6e-8,
                huge=65504.0,
                largest=largest,
                largest_at="layers.7",
                lost=0.0,
                lost_at="",
            )
        )
    )


def _margins(profile: Profile) -> Iterator[Margin]:
    precision = profile.facts.precision if profile.facts else None
    if precision is not None:
        quantity = f"largest number, in {precision.dtype}"
        yield Margin(quantity=quantity, value=precision.largest, limit=precision.huge / MARGIN)


@check(
    code="N703",
    name="near-overflow",
    since="0.1.0",
    margins=_margins,
    sick=_example(3e4),
    healthy=_example(100.0),
)
def near_overflow(profile: Profile) -> Iterator[Symptom]:
    r"""Some activation or gradient is close to the largest number that its dtype can hold.

    ## What it measures
    The largest finite magnitude of all activations and gradients of the pass, against the largest number of the dtype
    that most of the pass ran in. Fires if less than a factor `MARGIN` = 8 is left.

    ## Why it hurts
    The next larger batch, or a few steps of training, make infinities, and NaN of these. In float16 the limit is
    65504, which attention logits and sums over many elements reach.

    ## When it is wrong
    A large constant that was written down (a mask, a running maximum that starts at -1e38) is not counted, nor a sum in
    which it stays the largest number; a product with it is.

    ## References
    Micikevicius et al., "Mixed precision training", 2018, section 3.
    """
    found = profile.facts.precision if profile.facts else None
    if found is None or not found.huge / MARGIN < found.largest < found.huge * 0.999:
        return
    yield Symptom(
        severity="warning",
        where=found.largest_at or "the model itself",
        message=f"a number of {found.largest:.3g} in a pass that runs in {found.dtype}, which ends at {found.huge:.3g}",
        evidence={"largest": found.largest, "limit": found.huge},
    )
