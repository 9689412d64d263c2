"""R403: an activation after every add, so that the skip is not an identity."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from leadline.checks._check import Symptom, check
from leadline.checks._examples import each_block, geometric, residual
from leadline.checks._laws import MIN_STRUCTURE_SHARE
from leadline.records import Attribution, Factor, Profile

# Cited: blocks. He et al. 2016 find 54 blocks (164 layers) slightly worse and 333 blocks (1001 layers) much worse.
MAX_BLOCKS = 160


def _example(blocks: int) -> Profile:
    factors = tuple(Factor(block=i, kind="activation", op="relu", backward=-0.5) for i in range(blocks))
    plain = each_block(geometric(blocks=blocks), residual=residual())
    return msgspec.structs.replace(plain, attribution=Attribution(factors=factors))


@check(
    code="R403",
    name="activation-on-skip",
    since="0.1.0",
    refuted_by="learning",
    explains=("U525",),
    sick=_example(300),
    healthy=_example(50),
)
def activation_on_skip(profile: Profile) -> Iterator[Symptom]:
    r"""An activation follows each residual add, so nothing passes through the blocks unchanged.

    ## What it measures
    The residual blocks whose output is an activation of the sum, as in the original ResNet. Fires if there are more
    than `MAX_BLOCKS` = 160 residual blocks and more than `MIN_STRUCTURE_SHARE` = 80 % of them are like this.

    ## Why it hurts
    Residual networks can be deep because of the identity path. A ReLU after the add passes only half of the changes, in
    one direction, and its slope multiplies the gradient of the skip in every block.

    ## When it is wrong
    At the depths of ordinary ResNets (up to about 50 blocks) it costs little, and the check does not fire.

    ## References
    He et al., "Identity mappings in deep residual networks", 2016, section 3 and table 1.
    """
    if profile.attribution is None:
        return
    active = {factor.block for factor in profile.attribution.factors if factor.kind == "activation"}
    blocks = [i for i, block in enumerate(profile.blocks) if block.residual is not None]
    affected = [i for i in blocks if i in active]
    if len(blocks) > MAX_BLOCKS and len(affected) > MIN_STRUCTURE_SHARE * len(blocks):
        yield Symptom(
            severity="warning",
            where=f"{profile.blocks[affected[0]].name} … {profile.blocks[affected[-1]].name}",
            message=f"{len(affected)} residual blocks apply an activation to the sum: their skips are not identities",
            action="Move the activation into the branch, before its weights: `x + conv(relu(norm(x)))` instead of "
            "`relu(x + conv(x))`.",
            evidence={"blocks": float(len(affected))},
            layers=(affected[0], affected[-1]),
        )
