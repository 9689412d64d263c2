"""R405: branches that drown their skips."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import each_block, geometric, residual
from leadline.checks._ranges import range_name, spans
from leadline.records import DepthBlock, Profile

DWARFED = (
    30.0  # branch over skip mean square; ours: what is left of the skip is below a fifth of the sum's size
)
FEWEST = 4  # blocks in a row: one block alone (the first, behind a small embedding) is no sickness


@check(
    code="R405",
    name="dwarfed-skips",
    since="0.1.0",
    refuted_by="learning",
    explains=("F106", "F101"),
    sick=each_block(geometric(blocks=12), residual=residual(branch_ms=200.0)),
    healthy=each_block(geometric(blocks=12), residual=residual(branch_ms=2.0)),
)
def dwarfed_skips(profile: Profile) -> Iterator[Symptom]:
    r"""In block after block the branch is many times larger than the skip it is added to.

    ## What it measures
    The mean square of branch over skip, with their scales. Fires above `DWARFED` = 30 in at least `FEWEST` = 4
    neighbouring blocks.

    ## Why it hurts
    $x + f(x)$ with $f \gg x$ is $f(x)$: the network is a plain one, with a plain network's gradients, and what the
    first blocks computed is overwritten by the next.

    ## When it is wrong
    One block that lifts a small embedding to the size of the stream is normal, and does not fire.

    ## References
    De and Smith, "Batch normalization biases residual blocks towards the identity function", 2020.
    """
    for span in spans([(_ratio(block) or 0.0) > DWARFED for block in profile.blocks]):
        count = span[1] - span[0] + 1
        if count >= FEWEST:
            ratio = max(_ratio(profile.blocks[i]) or 0.0 for i in range(span[0], span[1] + 1))
            yield Symptom(
                severity="warning",
                where=range_name(profile, span),
                message=f"{count} residual branches in a row are up to {ratio:.3g} times as large as their skips in "
                "mean square: the skip hardly counts",
                evidence={"largest_ratio": ratio, "blocks": float(count)},
                layers=span,
            )


def _ratio(block: DepthBlock) -> float | None:
    found = block.residual
    if found is None or found.projected or not found.skip_ms or found.branch_ms is None:
        return None
    return found.branch_ms / found.skip_ms
