"""R412: the matrices that mix residual streams multiply to something large or small."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._streams import between, mixings_of, streams_example
from leadline.records import Profile, StreamMixing

# Derived: the product of stochastic matrices has a gain of 1 along the axis that they normalize, and of at most the
# number of streams along the other, where all streams end in one. This is the factor beyond that.
MAX_GAIN_PER_STREAM = 2.0
# Heuristic: what remains of the streams at the start of the stack; stochastic matrices keep at least 1.
MIN_GAIN = 0.01


@check(
    code="R412",
    name="unstable-mixing",
    since="0.2.0",
    refuted_by="learning",
    sick=streams_example(forward_gain=300.0, is_normalized=False),
    healthy=streams_example(),
)
def unstable_mixing(profile: Profile) -> Iterator[Symptom]:
    r"""The product over depth of the matrices that mix residual streams grows or collapses.

    ## What it measures
    Where several streams are mixed in each layer, $X \leftarrow A_l X + b_l f(c_l X)$, the product $A_L \cdots A_1$ of
    the matrices (each the mean over tokens). Its gain is the largest sum of magnitudes in a row (forward) or in a
    column (backward). Fires if one of them exceeds `MAX_GAIN_PER_STREAM` = 2 times the number of streams, or if both
    are below `MIN_GAIN` = 0.01.

    ## Why it hurts
    The product is the skip connection of the whole network. The identity, and doubly stochastic matrices, have a gain
    of 1. Free matrices that are a little larger multiply up over depth: signal and gradient explode. If the product
    vanishes, the first layers are cut off.

    ## When it is wrong
    Networks that forget earlier layers on purpose. A network that learns in the rehearsal shows that it can be trained:
    then this is a note.

    ## References
    Zhu et al., "Hyper-connections", 2024; Xie et al., "mHC: manifold-constrained hyper-connections", 2025.
    """
    mixings = mixings_of(profile)
    unstable = [each for each in mixings if _gain(each) < MIN_GAIN or _grows(each)]
    if not unstable:
        return
    worst = max(unstable, key=lambda each: abs(math.log(max(_gain(each), 1e-300))))
    direction = "grows to" if _grows(worst) else "shrinks to"
    yield Symptom(
        severity="warning",
        where=between(worst),
        message=f"the product of {worst.layers} matrices that mix {worst.streams} streams {direction} "
        f"{_gain(worst):.3g}",
        action="Start the matrices at the identity, and make them doubly stochastic (a Sinkhorn normalization of their "
        "exponentials, as the scheme `mhc` of `leadline.nn`).",
        source=worst.site.source,
        evidence={"forward_gain": worst.forward_gain, "backward_gain": worst.backward_gain},
    )


def _grows(mixing: StreamMixing) -> bool:
    return _gain(mixing) > MAX_GAIN_PER_STREAM * mixing.streams


def _gain(mixing: StreamMixing) -> float:
    """The larger gain; NaN, which is neither large nor small, where a matrix holds one."""
    gains = (mixing.forward_gain, mixing.backward_gain)
    return math.nan if any(map(math.isnan, gains)) else max(gains)
