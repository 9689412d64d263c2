"""R406: GPT-2's scaled initialization, which does not bound the update."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_scaled_init
from leadline.checks._laws import pre_norm_blocks, scaled_init_ratio
from leadline.records import Profile

# Heuristic: with fewer sub-layers, the growth of the update with depth is small.
MIN_SUBLAYERS = 24
# Heuristic: a smaller factor on the branch counts as a scale.
MAX_BRANCH_SCALE = 0.9


@check(
    code="R406",
    name="scaled-init-only",
    since="0.1.0",
    sick=stack_with_scaled_init(64),
    healthy=stack_with_scaled_init(8),
)
def scaled_init_only(profile: Profile) -> Iterator[Symptom]:
    r"""Branches are scaled by depth only in their initial weights, which does not bound a step.

    ## What it measures
    Pre-norm blocks without scales in which the variance of the last weights of a branch is that of its other weights
    divided by about the number of sub-layers. It is a note, from `MIN_SUBLAYERS` = 24 on.

    ## Why it hurts
    Dividing the last weights by $\sqrt{2N}$ bounds the size of the stream at initialization. It does not divide the
    gradient of these weights, nor Adam's step: the change of the function by one step still grows in proportion to
    depth. A *multiplier* on the branch, or a learning rate that falls with depth, bounds both.

    ## When it is wrong
    With a learning rate that was chosen for this depth nothing is wrong; it only does not transfer to another depth.

    ## References
    Radford et al., "Language models are unsupervised multitask learners", 2019, section 2.3; measured: slopes of the
    first update with depth in `benchmarks/update_exponents.py` ("gpt2-init").
    """
    blocks = pre_norm_blocks(profile)
    scaled = [b for b in blocks if b.residual and (b.residual.branch_scale or 1.0) < MAX_BRANCH_SCALE]
    ratio = None if len(blocks) < MIN_SUBLAYERS or scaled else scaled_init_ratio(profile, len(blocks))
    if ratio is not None:
        yield Symptom(
            severity="info",
            where=f"{blocks[0].name} … {blocks[-1].name}",
            message=f"the last weights of {len(blocks)} branches have a variance {1 / ratio:.3g} times smaller than "
            "the others, and nothing multiplies the branches: this bounds the stream but not the change by one step",
            action=f"Multiply each branch by 1/sqrt({len(blocks)}) = {len(blocks) ** -0.5:.2g} instead of scaling its "
            "initial weights, or lower the learning rate in proportion to depth.",
            evidence={"variance_ratio": ratio, "sublayers": float(len(blocks))},
        )
