"""N703: values close to the largest number of the dtype."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with
from leadline.records import Margin, ModelFacts, Precision, Profile

# Heuristic: factor between the largest value and the limit of the dtype; the first steps change sizes by a few times.
MIN_HEADROOM = 8.0


def _example(largest: float) -> Profile:
    return stack_with(
        ModelFacts(
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
        yield Margin(quantity=quantity, value=precision.largest, limit=precision.huge / MIN_HEADROOM)


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
    The largest finite magnitude of all activations and gradients of the pass, compared with the largest number of the
    dtype that most of the pass ran in. Fires if less than a factor of `MIN_HEADROOM` = 8 is left.

    ## Why it hurts
    A larger batch or a few steps of training lead to infinities, and these to NaN. The limit of float16 is 65504, which
    attention logits and sums over many elements reach.

    ## When it is wrong
    A large constant in the code (a mask, a running maximum that starts at -1e38) does not count, nor does a sum in
    which it stays the largest number. A product with it does.

    ## References
    Micikevicius et al., "Mixed precision training", 2018, section 3.
    """
    precision = profile.facts.precision if profile.facts else None
    if precision is None or not precision.huge / MIN_HEADROOM < precision.largest < precision.huge * 0.999:
        return
    yield Symptom(
        severity="warning",
        where=precision.largest_at or "the model itself",
        message=f"a value of {precision.largest:.3g} is close to the largest {precision.dtype} number, "
        f"{precision.huge:.3g}",
        action=_action(precision),
        evidence={"largest": precision.largest, "limit": precision.huge},
    )


def _action(precision: Precision) -> str:
    place = f"`{precision.largest_at}`" if precision.largest_at else "the layer that makes it"
    if precision.dtype == "float16":
        return f"Use bfloat16 (`torch.autocast(..., dtype=torch.bfloat16)`), or run {place} in float32."
    return f"Put a norm before {place}, or scale its weights down."
