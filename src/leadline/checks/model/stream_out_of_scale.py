"""F108: the stream starts much smaller or larger than what is added to it."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import each_block, geometric, residual
from leadline.checks._ranges import body
from leadline.records import Profile

SMALL = 1e-4  # skip / branch mean square; ours: GPT-2 starts at 0.02 to 0.1
LARGE = 1e6  # ours: DeepNorm for Adam has 1e5 at a hundred layers by design


@check(
    code="F108",
    name="stream-out-of-scale",
    since="0.1.0",
    refuted_by="learning",
    explains=("B202", "B201", "R405"),
    sick=each_block(geometric(blocks=8), residual=residual(placement="pre", skip_ms=1e-7)),
    healthy=each_block(geometric(blocks=8), residual=residual(placement="pre", skip_ms=0.05)),
)
def stream_out_of_scale(profile: Profile) -> Iterator[Symptom]:
    r"""The embedding is much smaller or much larger than what the first branch adds to it.

    ## What it measures
    At the first residual add of a stream, the ratio of the mean squares of skip and branch, with deliberate scales
    (ReZero, LayerScale, DeepNorm's alpha) taken out. A note below `SMALL` = 1e-4 and above `LARGE` = 1e6.

    ## Why it hurts
    A stream far smaller than its first branch is overwritten by it: the identity path carries nothing, and behind a
    norm the gradient of the embedding is multiplied by one over its size. One far larger makes the branches a rounding
    error: a network of blocks behaves like its embedding and head alone.

    ## When it is wrong
    Where a norm follows the embedding the ratio is measured behind it, so this does not fire; nor does it for branches
    that are exactly zero.

    ## References
    Takase et al., "Spike no more: stabilizing the pre-training of large language models", 2023, section 3 (small
    embeddings amplify gradients through the norm).
    """
    for stream in range(len(profile.streams)):
        blocks = [profile.blocks[i] for i in body(profile, stream)]
        first = next((block for block in blocks if block.residual is not None), None)
        if first is None or first.residual is None:
            continue
        found = first.residual
        if not found.skip_ms or not found.branch_ms or not found.branch_scale or found.projected:
            continue
        ratio = (found.skip_ms / (found.skip_scale or 1.0) ** 2) / (found.branch_ms / found.branch_scale**2)
        if SMALL < ratio < LARGE:
            continue
        size = "smaller" if ratio < 1 else "larger"
        yield Symptom(
            severity="info",
            where=first.name,
            message=f"the stream enters the first residual block with a mean square of {found.skip_ms:.3g}, which is "
            f"{max(ratio, 1 / ratio):.3g} times {size} than that of what the block adds",
            evidence={"ratio": ratio, "skip_ms": found.skip_ms, "branch_ms": found.branch_ms},
        )
