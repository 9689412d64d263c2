"""N705: the loss is scaled, and the scale does not fit the gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec.structs import replace

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with
from leadline.checks.model.gradient_underflow import SHARE, needed_bits
from leadline.records import Facts, Head, Precision, Profile

LEAST = (
    16.0  # ours: scalers begin at 2^16 and go down to 2^4 at the worst; a sum of losses is no power of two
)
EXACT = 0.01  # relative; derived: a loss in bfloat16 is rounded by 0.4 %


def _example(scale: float, lost: float) -> Profile:
    precision = Precision(
        dtype="float16",
        parameters="float32",
        tiny=6e-8,
        huge=65504.0,
        largest=4.0,
        largest_at="head",
        lost=lost,
        lost_at="layers.0",
    )
    head = Head(loss="cross_entropy", value=2.3, classes=10, logit_ms=1.0, logit_max=3.0, behind="")
    return replace(stack_with(Facts(precision=precision, head=head)), loss=2.3 * scale)


@check(
    code="N705",
    name="loss-scale-off",
    since="0.1.0",
    explains=("N701", "N702", "N703"),
    sick=_example(1024.0, 0.4),
    healthy=_example(65536.0, 0.001),
)
def loss_scale_off(profile: Profile) -> Iterator[Symptom]:
    r"""The loss is multiplied by a scale at which gradients overflow, or still vanish.

    ## What it measures
    The loss that was differentiated over what its last loss op gave: a power of two from `LEAST` = 16 on is a loss
    scale. Fires if the pass forward is finite and the one backward is not (the scale is too high), or if more than
    5 % of some gradient still lies below the smallest number of the dtype (too low); and says which scale would do.

    ## Why it hurts
    A gradient scaler skips every step whose gradient is not finite: too high a scale is training that does not happen,
    until the scaler has come down. Too low a scale is a gradient with holes.

    ## When it is wrong
    Dynamic scalers begin too high on purpose and come down within a few steps: then a note to wait. A loss that is
    multiplied by a power of two for another reason.

    ## References
    Micikevicius et al., "Mixed precision training", 2018, section 3.2.
    """
    scale, found = _scale(profile), profile.facts.precision if profile.facts else None
    if scale is None or found is None:
        return
    directions = {anomaly.direction for anomaly in profile.anomalies}
    if directions == {"backward"}:
        story = "the gradient is not finite while the signal is: too high; a scaler comes down by itself, a fixed "
        story += "scale must be lowered"
    elif found.lost > SHARE and not directions:
        bits = math.ceil(math.log2(scale) + needed_bits(found.lost))
        story = f"{found.lost:.0%} of a gradient still vanishes: too low; 2^{bits} would lift it"
    else:
        return
    yield Symptom(
        severity="warning",
        where="the loss",
        message=f"the loss is scaled by 2^{round(math.log2(scale))} for {found.dtype}, and {story}",
        evidence={"scale": scale, "lost": found.lost, "largest": found.largest},
    )


def _scale(profile: Profile) -> float | None:
    """The power of two that the loss was multiplied by; None if it was not."""
    head = profile.facts.head if profile.facts else None
    if head is None or profile.loss is None or not head.loss or not head.value:
        return None
    ratio = profile.loss / head.value
    if not (math.isfinite(ratio) and ratio >= LEAST):
        return None
    bits = math.log2(ratio)
    return ratio if abs(2 ** (bits - round(bits)) - 1) < EXACT else None
