"""Whether the last weights of branches are drawn smaller with depth, as GPT-2 does it: what R406 and I306 share."""

from __future__ import annotations

from statistics import median

from leadline.checks._examples import each_block, residual, stack_with, weight
from leadline.records import Block, Facts, Profile

NEAR = 3.0  # factor around 1/N that counts as scaled by depth; ours: activations ask for gains of up to 2 beside it


def pre_norm_blocks(profile: Profile) -> list[Block]:
    """The residual blocks with a norm in front of the branch and an identity beside it."""
    return [
        b for b in profile.blocks if b.residual and b.residual.placement == "pre" and not b.residual.projected
    ]


def scaled_ratio(profile: Profile, sublayers: int) -> float | None:
    """Variance of the last weights of branches over that of the others, if it is about 1/N; None if it is not."""
    weights = [w for w in (profile.facts.weights if profile.facts else ()) if w.residual]
    last, others = [w.variance for w in weights if w.last], [w.variance for w in weights if not w.last]
    if not last or not others or not median(others) > 0:
        return None
    ratio = median(last) / median(others)
    return ratio if 1 / NEAR < ratio * sublayers < NEAR else None


def scaled_example(blocks: int, *, branch_scale: float = 1.0) -> Profile:
    """A pre-norm stack whose last weights have 1/N of the variance of the others, its branches scaled beside that."""
    pairs = [
        each
        for i in range(blocks)
        for each in (weight(i, residual=True), weight(i, residual=True, last=True, variance=1 / blocks))
    ]
    scaled = residual(placement="pre", branch_scale=branch_scale, branch_ms=branch_scale**2 / blocks)
    return each_block(stack_with(Facts(weights=tuple(pairs)), blocks=blocks), residual=scaled)
