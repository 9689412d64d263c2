"""N702: gradients below the smallest number of the dtype."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import NormalDist

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with
from leadline.checks._steps import HALF_PRECISION
from leadline.records import Margin, ModelFacts, Precision, Profile

# Cited: share of a gradient's entries. Micikevicius et al. 2018 lost 5 % in a model that still trained (figure 3).
MAX_LOST_SHARE = 0.05
# Derived: a gradient whose root mean square is this multiple of the smallest number loses a thousandth of its entries.
MIN_GRADIENT_MULTIPLE = 1024.0


def _example(lost: float) -> Profile:
    return stack_with(
        ModelFacts(
            precision=Precision(
                dtype="float16",
                parameters="float32",
                tiny=6e-8,
                huge=65504.0,
                largest=4.0,
                largest_at="head",
                lost=lost,
                lost_at="layers.0",
            )
        )
    )


def _margins(profile: Profile) -> Iterator[Margin]:
    precision = profile.facts.precision if profile.facts else None
    if precision is not None:
        quantity = f"gradient below the smallest {precision.dtype}"
        yield Margin(quantity=quantity, value=precision.lost, limit=MAX_LOST_SHARE)


@check(
    code="N702",
    name="gradient-underflow",
    since="0.1.0",
    margins=_margins,
    sick=_example(0.4),
    healthy=_example(0.001),
)
def gradient_underflow(profile: Profile) -> Iterator[Symptom]:
    r"""Part of the gradient is smaller than the smallest number of the dtype it is computed in.

    ## What it measures
    For each value of the pass, the share of a Gaussian gradient of the measured size that lies below half of the
    smallest (subnormal) number of the dtype. Fires if it is above `MAX_LOST_SHARE` = 5 % for the worst value, and says
    which loss scale would bring the gradient into range and at which scale the largest number would overflow.

    ## Why it hurts
    Entries that underflow are zero: they get no gradient. The smallest float16 number is $6 \cdot 10^{-8}$, which
    gradients of large batches and late layers reach. In float32 only a gradient that vanishes with depth underflows.

    ## When it is wrong
    The trace runs without a gradient scaler. If training has one, it should find the scale that is suggested here.

    ## References
    Micikevicius et al., "Mixed precision training", 2018, section 3.2 and figure 3.
    """
    precision = profile.facts.precision if profile.facts else None
    if precision is None or precision.lost <= MAX_LOST_SHARE:
        return
    room = math.log2(precision.huge / precision.largest) if precision.largest > 0 else 0.0
    yield Symptom(
        severity="warning",
        where=precision.lost_at or "the model itself",
        message=f"{100 * precision.lost:.0f} % of a gradient underflows: it lies below the smallest {precision.dtype} "
        f"number, {precision.tiny:.1g}",
        action=_action(precision, math.ceil(needed_bits(precision.lost)), math.floor(room)),
        evidence={"lost": precision.lost, "largest": precision.largest, "room_bits": room},
    )


def _action(precision: Precision, needed: int, room: int) -> str:
    if precision.dtype not in HALF_PRECISION:
        return (
            f"Fix the decay of the gradient before {precision.lost_at or 'the first layers'}, which other findings "
            "name."
        )
    if needed > room:
        return "Use bfloat16 (`torch.autocast(..., dtype=torch.bfloat16)`), because no loss scale fits all gradients."
    return (
        f"Scale the loss by 2^{needed} to 2^{room} with `torch.amp.GradScaler(init_scale=2.0**{needed})`, or use "
        "bfloat16."
    )


def needed_bits(lost: float) -> float:
    """Powers of two by which to scale a gradient that loses this share, so that it loses at most a thousandth."""
    deviations = NormalDist().inv_cdf((1 + min(lost, 1 - 1e-12)) / 2)
    return math.log2(2 * MIN_GRADIENT_MULTIPLE * deviations)
