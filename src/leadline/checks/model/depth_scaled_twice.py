"""I306: branches are scaled by depth twice, in the initial weights and in the forward pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import correlation, linear_regression, median

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_scaled_init
from leadline.checks._laws import pre_norm_blocks, scaled_init_ratio
from leadline.records import DepthBlock, Profile

# Heuristic: with fewer sub-layers, powers of their number are too close to distinguish.
MIN_SUBLAYERS = 8
# Heuristic: power of N. Schemes scale branches by N^-1/2 or N^-1; a constant scale of 1/2 is N^-1/3 at N = 8.
MIN_SCALE_POWER = 0.4
# Derived: slope of ln(branch) over ln(l). A norm scaled by 1/sqrt(l) gives -1, W2 phi(W1 x) slightly more.
MIN_SLOPE, MAX_SLOPE = -1.5, -0.6
# Heuristic: branches that follow the law at all have a correlation closer to -1.
MAX_CORRELATION = -0.8


@check(
    code="I306",
    name="depth-scaled-twice",
    since="0.1.0",
    explains=("R406",),
    sick=stack_with_scaled_init(32, branch_scale=32**-0.5),
    healthy=stack_with_scaled_init(32),
)
def depth_scaled_twice(profile: Profile) -> Iterator[Symptom]:
    r"""Branches are scaled by depth in their initial weights and once more in the forward pass.

    ## What it measures
    Pre-norm blocks whose last weights have about $1/N$ of the variance of the others ($N$ sub-layers; the scaled
    initialization of GPT-2). Fires if they also multiply the branch by $N^{-0.4}$ or less (`MIN_SCALE_POWER`), or if
    branches decrease with depth like those after a norm scaled by $1/\sqrt{\ell}$: the slope of $\ln q_f$ over
    $\ln \ell$ is near -1.

    ## Why it hurts
    Each of the two is enough to bound the stream. Together they leave branches with $1/N^2$ of the stream's power: the
    blocks add almost nothing, deep ones least, and depth costs time without being used. It is a note, because such a
    network trains as a shallow one would.

    ## When it is wrong
    Branches that start near zero on purpose and grow by a learned scale (ReZero, LayerScale) are not meant. They would
    fire only if their scale happened to be about $N^{-1/2}$.

    ## References
    Sun et al., "The curse of depth in large language models", 2025 (LayerNorm scaling is not to be combined with scaled
    initialization); Radford et al., "Language models are unsupervised multitask learners", 2019, section 2.3.
    """
    blocks = pre_norm_blocks(profile)
    ratio = scaled_init_ratio(profile, len(blocks)) if len(blocks) >= MIN_SUBLAYERS else None
    second = "" if ratio is None else _second_scaling(blocks)
    if ratio is None or not second:
        return
    parts = [r.branch_ms / r.skip_ms for b in blocks if (r := b.residual) and r.branch_ms and r.skip_ms]
    share = median(parts) if parts else 0.0
    yield Symptom(
        severity="info",
        where=f"{blocks[0].name} … {blocks[-1].name}",
        message=f"branches are scaled by depth twice, in their last weights and {second}: a branch has only "
        f"{share:.2g} of the power of its skip",
        action=f"Remove one of the two scalings, for example by initializing the last weights of the branches with "
        f"{ratio**-0.5:.2g} times their present standard deviation.",
        evidence={"variance_ratio": ratio, "branch_over_skip": share, "sublayers": float(len(blocks))},
    )


def _second_scaling(blocks: Sequence[DepthBlock]) -> str:
    """Where the second scaling is, for a message; "" if there is none."""
    scales = [b.residual.branch_scale for b in blocks if b.residual and b.residual.branch_scale is not None]
    scale = abs(median(scales)) if scales else 1.0
    if 0 < scale <= len(blocks) ** -MIN_SCALE_POWER:
        return "by a factor of the branch"
    return "by a factor that decreases along the depth" if _decreases(blocks) else ""


def _decreases(blocks: Sequence[DepthBlock]) -> bool:
    r"""Whether branches follow $q_f \propto 1/\ell$. Averages neighbors, as attention and feed-forward alternate."""
    known = [
        (math.log(place), math.log(block.residual.branch_ms))
        for place, block in enumerate(blocks, start=1)
        if block.residual and block.residual.branch_ms and math.isfinite(block.residual.branch_ms)
    ]
    if len(known) < MIN_SUBLAYERS or len({power for _, power in known}) == 1:
        return False
    pairs = [((a + b) / 2, (p + q) / 2) for (a, p), (b, q) in pairwise(known)]
    depth, power = zip(*pairs, strict=True)
    straight = correlation(depth, power) < MAX_CORRELATION
    return straight and MIN_SLOPE < linear_regression(depth, power).slope < MAX_SLOPE
