"""B205: a plain stack of batch norms amplifies the gradient in every layer."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from leadline.checks._check import Symptom, check
from leadline.checks._examples import geometric
from leadline.checks._laws import backward_laws
from leadline.readings.limits import MAX_EFOLDS_SGD
from leadline.records import Attribution, Factor, Profile

EVERY = 0.8  # of the blocks that must have a batch norm and no skip (ours)
EXPECTED = math.pi / (math.pi - 1)  # 1.467 a layer; derived: what a ReLU between two batch norms leaves


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
    explains=("B202", "U501", "U502", "U509", "U503", "U504", "U505", "U521", "U523"),
    sick=_example(1.45),
    healthy=_example(1.05),
)
def batch_norm_explosion(profile: Profile) -> Iterator[Symptom]:
    r"""In a stack of batch norms without skips the gradient grows by a constant factor a layer.

    ## What it measures
    The growth of $\sum g^2$ towards the input over blocks of which at least `EVERY` = 80 % hold a batch norm and no
    skip. Fires beyond `MAX_EFOLDS_SGD` = 7 e-folds.

    ## Why it hurts
    A batch norm takes out the mean that a ReLU makes, and divides by what is left: $1 - 1/\pi$ of the second moment.
    Forward this is undone by the next ReLU; backward it is not, and each layer multiplies the squared gradient by
    $\pi / (\pi - 1) = 1.467$, whatever the weights. Fifty layers make $2 \cdot 10^8$. No initialisation changes it;
    skips do.

    ## When it is wrong
    Weights in front of a batch norm that get large gradients grow, and their steps shrink by themselves, so that
    moderate depths train with a warm-up.

    ## References
    Yang et al., "A mean field theory of batch normalization", 2019, section 3 (the factor for ReLU).
    """
    normed = (
        {f.block for f in profile.attribution.factors if f.op == "batch_norm"}
        if profile.attribution
        else set()
    )
    for law in backward_laws(profile):
        span = range(law.layers[0], law.layers[1] + 1)
        plain = [i for i in span if i in normed and profile.blocks[i].residual is None]
        if law.change > MAX_EFOLDS_SGD and len(plain) > EVERY * len(span):
            yield Symptom(
                severity="warning",
                where=law.where,
                message=f"batch norms without skips multiply the squared gradient by {law.gain:.3g} a layer "
                f"(theory: {EXPECTED:.3g} behind a ReLU): {law.change:.3g} e-folds over {law.blocks} blocks",
                evidence=law.evidence(),
                layers=law.layers,
            )
