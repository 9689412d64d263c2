"""U505: nearly all of the step happens in one block."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_update
from leadline.checks._laws import MIN_COMPARED_BLOCKS
from leadline.records import Profile
from leadline.text import layer_label

# Heuristic: all other blocks together then make a twentieth of the predicted change.
MAX_SHARE = 0.95


@check(
    code="U505",
    name="dominated-update",
    since="0.1.0",
    sick=stack_with_update(shares=[0.98, *[0.02 / 15] * 15]),
    healthy=stack_with_update(shares=[0.6, *[0.4 / 15] * 15]),
)
def dominated_update(profile: Profile) -> Iterator[Symptom]:
    r"""One block makes nearly all of the change that the gradient predicts for a step.

    ## What it measures
    The part of each block in $\langle g, \Delta\theta \rangle$ for one real step. It is a note if one of at least
    `MIN_COMPARED_BLOCKS` = 8 blocks has more than `MAX_SHARE` = 0.95 of it.

    ## Why it hurts
    This block alone then sets the learning rate. What it tolerates is far too little for all the others, which hardly
    learn.

    ## When it is wrong
    At the very start a head or an embedding may dominate for a few steps. With optimizers that rescale each parameter
    it means that gradients elsewhere are zero or below the optimizer's epsilon.

    ## References
    You et al., "Large batch training of convolutional networks", 2017, section 4 (update to weight ratios differ by
    layer).
    """
    blocks = () if profile.update is None else profile.update.blocks
    known = [block for block in blocks if block.share is not None]
    if len(known) < MIN_COMPARED_BLOCKS:
        return
    largest = max(known, key=lambda block: block.share or 0.0)
    share = largest.share or 0.0
    if share > MAX_SHARE:
        yield Symptom(
            severity="info",
            where=largest.name,
            message=f"{layer_label(largest.name)} makes {100 * share:.1f} % of the predicted change of the "
            "loss: the other blocks hardly learn",
            action=f"Give {layer_label(largest.name)} a parameter group with a smaller `lr`, so that the learning "
            "rate of the other blocks can be raised.",
            evidence={"share": share, "blocks": float(len(known))},
        )
