"""N702: gradients below the smallest number of the dtype."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import NormalDist

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with
from leadline.records import Facts, Margin, Precision, Profile

SHARE = 0.05  # of a gradient's entries; Micikevicius et al. 2018 lost 5 % in a model that still trained (figure 3)

ABOVE = 1024.0  # times the smallest number: where a gradient of that root mean square loses a thousandth (derived)


def _example(lost: float) -> Profile:
    return stack_with(
        Facts(
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
        yield Margin(quantity=quantity, value=precision.lost, limit=SHARE)


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
    smallest (subnormal) number of the dtype. Fires above `SHARE` = 5 %, for the worst value, and says which loss scale
    would bring the gradient to the middle of the range, and how far it could go before the largest number overflows.

    ## Why it hurts
    What underflows is zero: these entries get no gradient. In float16 numbers end at $6 \cdot 10^{-8}$, which gradients
    of large batches and late layers reach; in float32 only a gradient that dies out with depth does.

    ## When it is wrong
    With a gradient scaler: the trace runs without one. Then read the scale it suggests as what the scaler should find.

    ## References
    Micikevicius et al., "Mixed precision training", 2018, section 3.2 and figure 3.
    """
    found = profile.facts.precision if profile.facts else None
    if found is None or found.lost <= SHARE:
        return
    room = math.log2(found.huge / found.largest) if found.largest > 0 else 0.0
    needed = needed_bits(found.lost)
    yield Symptom(
        severity="warning",
        where=found.lost_at or "the model itself",
        message=f"{100 * found.lost:.0f} % of a gradient lies below the smallest {found.dtype}; a loss scale of about "
        f"2^{math.ceil(needed)} or more would lift it, and up to 2^{math.floor(room)} nothing overflows",
        evidence={"lost": found.lost, "largest": found.largest, "room_bits": room},
    )


def needed_bits(lost: float) -> float:
    """Powers of two by which a gradient that loses this share has to be lifted to lose a thousandth at most."""
    deviations = NormalDist().inv_cdf((1 + min(lost, 1 - 1e-12)) / 2)
    return math.log2(2 * ABOVE * deviations)
