"""B205: a plain stack of batch norms amplifies the gradient in every layer."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from leadline.checks._check import Symptom, check
from leadline.checks._examples import geometric
from leadline.checks._laws import MIN_STRUCTURE_SHARE, backward_laws
from leadline.readings.limits import MAX_EFOLDS_SGD
from leadline.records import Attribution, Factor, Profile

# Derived: gain per layer of a ReLU between two batch norms, 1.467.
THEORETICAL_GAIN = math.pi / (math.pi - 1)


def _example(gain: float) -> Profile:
    factors = tuple(Factor(block=i, kind="norm", op="batch_norm", backward=math.log(gain)) for i in range(50))
    return msgspec.structs.replace(
        geometric(blocks=50, grad_gain=gain, norms=1), attribution=Attribution(factors=factors)
    )


@check(
    code="B205",
    name="batch-norm-explosion",
    since="0.1.0",
    refuted_by="learning",
    explains=("B202", "U501", "U502", "U509", "U503", "U504", "U505", "U521", "U523", "U525"),
    sick=_example(1.45),
    healthy=_example(1.05),
)
def batch_norm_explosion(profile: Profile) -> Iterator[Symptom]:
    r"""In a stack of batch norms without skips the gradient grows by a constant factor per layer.

    ## What it measures
    The growth of $\sum g^2$ toward the input over blocks of which more than `MIN_STRUCTURE_SHARE` = 80 % have a batch
    norm and no skip. Fires beyond `MAX_EFOLDS_SGD` = 7 e-folds.

    ## Why it hurts
    A batch norm subtracts the mean that a ReLU creates and divides by what is left, $1 - 1/\pi$ of the second moment.
    In the forward pass the next ReLU undoes this. In the backward pass nothing does, and each layer multiplies the
    squared gradient by $\pi / (\pi - 1) = 1.467$ for any weights. Fifty layers make $2 \cdot 10^8$. No initialization
    changes that, but skips do.

    ## When it is wrong
    Weights before a batch norm grow if they get large gradients, which makes their later steps smaller. Moderate depths
    therefore train with a warm-up.

    ## References
    Yang et al., "A mean field theory of batch normalization", 2019, section 3 (the factor for ReLU).
    """
    factors = profile.attribution.factors if profile.attribution else ()
    normalized = {factor.block for factor in factors if factor.op == "batch_norm"}
    for law in backward_laws(profile):
        span = range(law.layers[0], law.layers[1] + 1)
        plain = [i for i in span if i in normalized and profile.blocks[i].residual is None]
        if law.change > MAX_EFOLDS_SGD and len(plain) > MIN_STRUCTURE_SHARE * len(span):
            yield Symptom(
                severity="warning",
                where=law.where,
                message=f"batch norms without skips multiply the squared gradient by {law.gain:.3g} per layer "
                f"(theory for ReLU: {THEORETICAL_GAIN:.3g}): {law.change:.3g} e-folds over {law.blocks} blocks",
                action="Add a skip connection around each block or every second one: `x + block(x)`.",
                evidence=law.evidence(),
                layers=law.layers,
            )
