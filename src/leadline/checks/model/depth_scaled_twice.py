"""I306: depth is scaled away twice, in the initial weights and once more in the forward pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import correlation, linear_regression, median

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_scaled_init
from leadline.checks._laws import pre_norm_blocks, scaled_init_ratio
from leadline.records import DepthBlock, Profile

FEWEST = 8  # sub-layers; ours: with fewer, powers of their number are too close to tell apart
LEAST_POWER = (
    0.4  # of N; ours: schemes scale branches by N^-1/2 or N^-1, a constant scale of 1/2 is N^-1/3 at N = 8
)
SLOPE = (
    -1.5,
    -0.6,
)  # of ln(branch) over ln(l); derived: a norm scaled by 1/sqrt(l) gives -1, W2 phi(W1 x) a bit more
STRAIGHT = -0.8  # correlation; ours: branches that follow the law at all follow it closer than that


@check(
    code="I306",
    name="depth-scaled-twice",
    since="0.1.0",
    explains=("R406",),
    sick=stack_with_scaled_init(32, branch_scale=32**-0.5),
    healthy=stack_with_scaled_init(32),
)
def depth_scaled_twice(profile: Profile) -> Iterator[Symptom]:
    r"""Branches are made small with depth in their initial weights, and once more by a scale.

    ## What it measures
    Pre-norm blocks whose last weights have about $1/N$ of the variance of the others ($N$ sub-layers; the scaled
    initialisation of GPT-2), and which besides multiply the branch by $N^{-0.4}$ or less, or whose branches fall with
    depth like those behind a norm scaled by $1/\sqrt{\ell}$: $\ln q_f$ over $\ln \ell$ has a slope near -1.

    ## Why it hurts
    Each of the two keeps the stream in bounds alone. Together they leave branches with $1/N^2$ of the stream's power:
    the blocks add next to nothing, deep ones least, and depth is paid for but not used. It is a note: such a network
    trains, as a shallow one would.

    ## When it is wrong
    Branches that start near zero on purpose and grow by a learned scale (ReZero, LayerScale) are not meant; their scale
    would have to be of the size of $N^{-1/2}$ by chance.

    ## References
    Sun et al., "The curse of depth in large language models", 2025 (LayerNorm scaling is not to be combined with scaled
    initialisation); Radford et al., "Language models are unsupervised multitask learners", 2019, section 2.3.
    """
    blocks = pre_norm_blocks(profile)
    ratio = scaled_init_ratio(profile, len(blocks)) if len(blocks) >= FEWEST else None
    again = "" if ratio is None else _again(blocks)
    if ratio is None or not again:
        return
    parts = [r.branch_ms / r.skip_ms for b in blocks if (r := b.residual) and r.branch_ms and r.skip_ms]
    share = median(parts) if parts else 0.0
    yield Symptom(
        severity="info",
        where=f"{blocks[0].name} … {blocks[-1].name}",
        message=f"the last weights of {len(blocks)} branches are drawn with {ratio:.2g} of the others' variance, and "
        f"{again}: together branches have {share:.2g} of their skips' power; keep one of the two",
        evidence={"variance_ratio": ratio, "branch_over_skip": share, "sublayers": float(len(blocks))},
    )


def _again(blocks: Sequence[DepthBlock]) -> str:
    """The second scaling, in a clause; "" if there is none."""
    scales = [b.residual.branch_scale for b in blocks if b.residual and b.residual.branch_scale is not None]
    scale = abs(median(scales)) if scales else 1.0
    if 0 < scale <= len(blocks) ** -LEAST_POWER:
        return f"branches are multiplied by {scale:.2g} besides"
    return "branches fall with depth like 1/l besides" if _falls(blocks) else ""


def _falls(blocks: Sequence[DepthBlock]) -> bool:
    r"""Branches follow $q_f \propto 1/\ell$; neighbours count together, since attention and feed-forward alternate."""
    known = [
        (math.log(place), math.log(block.residual.branch_ms))
        for place, block in enumerate(blocks, start=1)
        if block.residual and block.residual.branch_ms and math.isfinite(block.residual.branch_ms)
    ]
    if len(known) < FEWEST or len({power for _, power in known}) == 1:
        return False
    pairs = [((a + b) / 2, (p + q) / 2) for (a, p), (b, q) in pairwise(known)]
    depth, power = zip(*pairs, strict=True)
    straight = correlation(depth, power) < STRAIGHT
    return straight and SLOPE[0] < linear_regression(depth, power).slope < SLOPE[1]
