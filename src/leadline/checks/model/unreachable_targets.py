"""D931: targets that the last activation cannot reach."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._check import Symptom, check, in_op
from leadline.checks._wiring_examples import SITE, asked
from leadline.records import OutputRange, Profile

# Heuristic: fewer targets are outliers, or noise around the end of the range.
MAX_OUTSIDE = 0.05


def _example(outside: float) -> Profile:
    return asked(
        loss="mse_loss", output_range=OutputRange(site=SITE, low=0.0, high=math.inf, outside=outside)
    )


@check(
    code="D931",
    name="unreachable-targets",
    since="0.2.0",
    sick=_example(0.5),
    healthy=_example(0.0),
)
def unreachable_targets(profile: Profile) -> Iterator[Symptom]:
    r"""The last activation cannot have the values that the loss asks for.

    ## What it measures
    The last op that computed what a distance (`mse_loss`, `l1_loss` and others, or a difference written by hand)
    compares with targets. If it has a range, such as that of a ReLU, a sigmoid or a tanh, it counts the targets outside
    of it. A binary cross entropy compares probabilities, so its targets must lie between 0 and 1. Fires if more than
    `MAX_OUTSIDE` = 5 % of the targets are outside.

    ## Why it hurts
    The error at these targets never vanishes. The gradient pushes the network into the flat end of the activation,
    where it is small or zero: after a ReLU, outputs that should be negative stay at zero and stop learning.

    ## When it is wrong
    If the targets beyond the range are known to be errors of measurement.

    ## References
    Bishop, "Pattern recognition and machine learning", 2006, section 5.2 (the activation of the output and the loss).
    """
    reach = profile.question.output_range if profile.question else None
    if reach is None or reach.outside <= MAX_OUTSIDE:
        return
    ends = (
        f"at least {reach.low:g}" if math.isinf(reach.high) else f"between {reach.low:g} and {reach.high:g}"
    )
    yield Symptom(
        severity="warning",
        where=reach.site.module or "the model",
        message=f"{100 * reach.outside:.0f} % of the targets cannot be reached: the outputs are {ends}"
        f"{in_op(reach.site)}",
        action="Bring the targets between 0 and 1: labels of -1 and 1 become `(targets + 1) / 2`."
        if (reach.low, reach.high) == (0.0, 1.0)
        else f"Delete the {reach.site.op} after the last layer, or scale the targets into its range.",
        source=reach.site.source,
        evidence={"outside": reach.outside},
    )
