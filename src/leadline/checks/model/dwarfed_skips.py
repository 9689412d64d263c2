"""R405: branches that are much larger than their skips."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import each_block, geometric, residual
from leadline.checks._ranges import MIN_NEIGHBORING_BLOCKS, range_name, spans
from leadline.records import DepthBlock, Profile

# Heuristic: mean square of branch over skip. The skip is then less than a fifth of the sum in size.
MAX_BRANCH_RATIO = 30.0


@check(
    code="R405",
    name="dwarfed-skips",
    since="0.1.0",
    refuted_by="learning",
    explains=("F106", "F101", "U525"),
    sick=each_block(geometric(blocks=12), residual=residual(branch_ms=200.0)),
    healthy=each_block(geometric(blocks=12), residual=residual(branch_ms=2.0)),
)
def dwarfed_skips(profile: Profile) -> Iterator[Symptom]:
    r"""In neighboring blocks the branch is many times larger than the skip it is added to.

    ## What it measures
    The mean square of branch over skip, including their scales. Fires above `MAX_BRANCH_RATIO` = 30 in at least
    `MIN_NEIGHBORING_BLOCKS` = 4 blocks in a row.

    ## Why it hurts
    $x + f(x)$ with $f \gg x$ is $f(x)$: the network is a plain one with the gradients of a plain network, and each
    block overwrites what the blocks before it computed.

    ## When it is wrong
    A single block that raises a small embedding to the size of the stream is normal and does not fire.

    ## References
    De and Smith, "Batch normalization biases residual blocks towards the identity function", 2020.
    """
    for span in spans([(_ratio(block) or 0.0) > MAX_BRANCH_RATIO for block in profile.blocks]):
        count = span[1] - span[0] + 1
        if count >= MIN_NEIGHBORING_BLOCKS:
            ratio = max(_ratio(profile.blocks[i]) or 0.0 for i in range(span[0], span[1] + 1))
            yield Symptom(
                severity="warning",
                where=range_name(profile, span),
                message=f"{count} residual branches in a row have up to {ratio:.3g} times the mean square of their "
                "skips: the skips hardly count",
                action=f"Multiply each branch by {ratio**-0.5:.2g}, or put `nn.LayerNorm` before it.",
                evidence={"largest_ratio": ratio, "blocks": float(count)},
                layers=span,
            )


def _ratio(block: DepthBlock) -> float | None:
    residual = block.residual
    if residual is None or residual.projected or not residual.skip_ms or residual.branch_ms is None:
        return None
    return residual.branch_ms / residual.skip_ms
