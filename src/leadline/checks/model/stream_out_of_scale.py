"""F108: the stream starts much smaller or larger than the first branch that is added to it."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import each_block, geometric, residual
from leadline.checks._ranges import body
from leadline.records import Profile

# Heuristic: mean square of skip over branch; GPT-2 starts at 0.02 to 0.1.
MIN_SKIP_RATIO = 1e-4
# Heuristic: mean square of skip over branch; DeepNorm for Adam has 1e5 at a hundred layers by design.
MAX_SKIP_RATIO = 1e6


@check(
    code="F108",
    name="stream-out-of-scale",
    since="0.1.0",
    refuted_by="learning",
    explains=("B202", "B201", "R405", "U525"),
    sick=each_block(geometric(blocks=8), residual=residual(placement="pre", skip_ms=1e-7)),
    healthy=each_block(geometric(blocks=8), residual=residual(placement="pre", skip_ms=0.05)),
)
def stream_out_of_scale(profile: Profile) -> Iterator[Symptom]:
    r"""The embedding is much smaller or much larger than the first branch that is added to it.

    ## What it measures
    At the first residual add of a stream, the ratio of the mean squares of skip and branch, after division by
    deliberate scales (ReZero, LayerScale, DeepNorm's alpha). It is a note below `MIN_SKIP_RATIO` = 1e-4 and above
    `MAX_SKIP_RATIO` = 1e6.

    ## Why it hurts
    A stream far smaller than its first branch is overwritten by it: the identity path carries nothing, and a norm
    multiplies the gradient of the embedding by one over its size. In a stream that is far larger, the branches are a
    rounding error: the network behaves like its embedding and head alone.

    ## When it is wrong
    If a norm follows the embedding, the ratio is measured after it, so the check does not fire. It does not fire for
    branches that are exactly zero either.

    ## References
    Takase et al., "Spike no more: stabilizing the pre-training of large language models", 2023, section 3 (small
    embeddings amplify gradients through the norm).
    """
    for stream in range(len(profile.streams)):
        blocks = [profile.blocks[i] for i in body(profile, stream)]
        first = next((block for block in blocks if block.residual is not None), None)
        if first is None or first.residual is None:
            continue
        start = first.residual
        if not start.skip_ms or not start.branch_ms or not start.branch_scale or start.projected:
            continue
        ratio = (start.skip_ms / (start.skip_scale or 1.0) ** 2) / (start.branch_ms / start.branch_scale**2)
        if MIN_SKIP_RATIO < ratio < MAX_SKIP_RATIO:
            continue
        size = "smaller" if ratio < 1 else "larger"
        yield Symptom(
            severity="info",
            where=first.name,
            message=f"the stream enters the first residual block {max(ratio, 1 / ratio):.3g} times {size} in mean "
            f"square than the branch: its mean square is {start.skip_ms:.3g}",
            action=f"Multiply the initial embedding by {ratio**-0.5:.2g}, or put `nn.LayerNorm` after it.",
            evidence={"ratio": ratio, "skip_ms": start.skip_ms, "branch_ms": start.branch_ms},
        )
