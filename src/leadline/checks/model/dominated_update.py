"""U505: nearly all of the step happens in one block."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_update
from leadline.records import Profile

NEARLY_ALL = 0.95  # ours: the other blocks together do a twentieth
MIN_BLOCKS = 8  # ours: in a shallow network a large part in one block is no surprise


@check(
    code="U505",
    name="dominated-update",
    since="0.1.0",
    sick=stack_with_update(shares=[0.98, *[0.02 / 15] * 15]),
    healthy=stack_with_update(shares=[0.6, *[0.4 / 15] * 15]),
)
def dominated_update(profile: Profile) -> Iterator[Symptom]:
    r"""One block makes nearly all of the step's promised change.

    ## What it measures
    Each block's part of $\langle g, \Delta\theta \rangle$ in one real step. A note if one of at least `MIN_BLOCKS` = 8
    blocks has more than `NEARLY_ALL` = 0.95 of it.

    ## Why it hurts
    The rate is then set by that block alone: what it bears is far too little for all the others, which hardly learn.

    ## When it is wrong
    At the very start a head or an embedding may lead for a few steps and hand over later. With optimisers that rescale
    each parameter it means that gradients elsewhere are zero, or below the optimiser's epsilon.

    ## References
    You et al., "Large batch training of convolutional networks", 2017, section 4 (update to weight ratios differ by
    layer).
    """
    blocks = () if profile.update is None else profile.update.blocks
    known = [block for block in blocks if block.share is not None]
    if len(known) < MIN_BLOCKS:
        return
    most = max(known, key=lambda block: block.share or 0.0)
    if (most.share or 0.0) > NEARLY_ALL:
        yield Symptom(
            severity="info",
            where=most.name,
            message=f"{most.name} makes {most.share:.1%} of the step's promised change; "
            f"the other {len(known) - 1} blocks share the rest",
            evidence={"share": most.share or 0.0, "blocks": float(len(known))},
        )
