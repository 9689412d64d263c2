"""N705: the loss is scaled by a factor that does not fit the gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec.structs import replace

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with
from leadline.checks.model.gradient_underflow import MAX_LOST_SHARE, needed_bits
from leadline.records import Head, ModelFacts, Precision, Profile

# Heuristic: scalers start at 2^16 and go down to 2^4 at worst; a sum of losses is not a power of two.
MIN_LOSS_SCALE = 16.0
# Derived: relative distance from a power of two. A loss in bfloat16 is rounded by 0.4 %.
MAX_ROUNDING = 0.01


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
    return replace(stack_with(ModelFacts(precision=precision, head=head)), loss=2.3 * scale)


@check(
    code="N705",
    name="loss-scale-off",
    since="0.1.0",
    explains=("N701", "N702", "N703"),
    sick=_example(1024.0, 0.4),
    healthy=_example(65536.0, 0.001),
)
def loss_scale_off(profile: Profile) -> Iterator[Symptom]:
    r"""The loss is multiplied by a scale at which gradients overflow or still underflow.

    ## What it measures
    The loss that was differentiated, over the output of its last loss op: a power of two of at least `MIN_LOSS_SCALE` =
    16 is a loss scale. Fires if the forward pass is finite and the backward pass is not (the scale is too high), or if
    more than `MAX_LOST_SHARE` = 5 % of some gradient still lies below the smallest number of the dtype (too low), and
    says which scale would fit.

    ## Why it hurts
    A gradient scaler skips every step whose gradient is not finite. With a scale that is too high no step is made until
    the scaler has lowered it. With a scale that is too low, part of the gradient is missing.

    ## When it is wrong
    Dynamic scalers start too high on purpose and come down within a few steps. The loss may be multiplied by a power of
    two for another reason.

    ## References
    Micikevicius et al., "Mixed precision training", 2018, section 3.2.
    """
    scale, precision = _loss_scale(profile), profile.facts.precision if profile.facts else None
    if scale is None or precision is None:
        return
    directions = {anomaly.direction for anomaly in profile.anomalies}
    bits = round(math.log2(scale))
    if directions == {"backward"}:
        problem = "too high: the gradient is not finite although the signal is"
        action = (
            "Lower a fixed loss scale until the gradient is finite; a dynamic `torch.amp.GradScaler` lowers it by "
            "itself."
        )
    elif precision.lost > MAX_LOST_SHARE and not directions:
        needed = math.ceil(math.log2(scale) + needed_bits(precision.lost))
        problem = f"too low: {100 * precision.lost:.0f} % of a gradient still underflows"
        action = (
            f"Raise the loss scale to 2^{needed}, for example with "
            f"`torch.amp.GradScaler(init_scale=2.0**{needed})`."
        )
    else:
        return
    yield Symptom(
        severity="warning",
        where="the loss",
        message=f"the loss scale of 2^{bits} for {precision.dtype} is {problem}",
        action=action,
        evidence={"scale": scale, "lost": precision.lost, "largest": precision.largest},
    )


def _loss_scale(profile: Profile) -> float | None:
    """The power of two that the loss was multiplied by; None if it was not."""
    head = profile.facts.head if profile.facts else None
    if head is None or profile.loss is None or not head.loss or not head.value:
        return None
    ratio = profile.loss / head.value
    if not (math.isfinite(ratio) and ratio >= MIN_LOSS_SCALE):
        return None
    bits = math.log2(ratio)
    return ratio if abs(2 ** (bits - round(bits)) - 1) < MAX_ROUNDING else None
