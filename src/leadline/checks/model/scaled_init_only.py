"""R406: GPT-2's initialisation, taken for a bound on the update."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_scaled_init
from leadline.checks._laws import pre_norm_blocks, scaled_init_ratio
from leadline.records import Profile

FEWEST = 24  # sub-layers; ours: below, the growth with depth that the init does not stop is small


@check(
    code="R406",
    name="scaled-init-only",
    since="0.1.0",
    sick=stack_with_scaled_init(64),
    healthy=stack_with_scaled_init(8),
)
def scaled_init_only(profile: Profile) -> Iterator[Symptom]:
    r"""Depth is scaled in the initial weights only, which does not bound what a step does.

    ## What it measures
    Pre-norm blocks without scales whose last weights have about one over the number of sub-layers of the variance of
    the other weights in their branches. A note, from `FEWEST` = 24 sub-layers on.

    ## Why it hurts
    Dividing the last weights by $\sqrt{2N}$ keeps the stream's size at initialisation. It does not divide the gradient
    of these weights, nor Adam's step: the change of the function that one step makes still grows in proportion to
    depth. A *multiplier* on the branch, or a rate that falls with depth, bounds both.

    ## When it is wrong
    With a rate that was chosen for this very depth nothing is wrong; the rate just does not carry over to another one.

    ## References
    Radford et al., "Language models are unsupervised multitask learners", 2019, section 2.3; measured: slopes of the
    first update with depth in `benchmarks/update_exponents.py` ("gpt2-init").
    """
    blocks = pre_norm_blocks(profile)
    scaled = [b for b in blocks if b.residual and (b.residual.branch_scale or 1.0) < 0.9]
    ratio = None if len(blocks) < FEWEST or scaled else scaled_init_ratio(profile, len(blocks))
    if ratio is not None:
        yield Symptom(
            severity="info",
            where=f"{blocks[0].name} … {blocks[-1].name}",
            message=f"the last weights of {len(blocks)} branches are drawn {1 / ratio:.3g} times smaller in variance, "
            "and nothing multiplies the branches: that bounds the stream, not what one step changes",
            evidence={"variance_ratio": ratio, "sublayers": float(len(blocks))},
        )
