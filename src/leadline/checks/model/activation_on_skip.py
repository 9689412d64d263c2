"""R403: an activation behind every add, so that the skip is no identity."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from leadline.checks._check import Symptom, check
from leadline.checks._examples import each_block, geometric, residual
from leadline.records import Attribution, Factor, Profile

DEEP = 160  # blocks; cited: He et al. 2016 find 54 blocks (164 layers) slightly worse and 333 blocks (1001) much worse
SHARE = 0.8  # of the residual blocks (ours)


def _example(blocks: int) -> Profile:
    factors = tuple(Factor(block=i, kind="activation", op="relu", backward=-0.5) for i in range(blocks))
    plain = each_block(geometric(blocks=blocks), residual=residual())
    return msgspec.structs.replace(plain, attribution=Attribution(factors=factors))


@check(
    code="R403",
    name="activation-on-skip",
    since="0.1.0",
    refuted_by="learning",
    sick=_example(300),
    healthy=_example(50),
)
def activation_on_skip(profile: Profile) -> Iterator[Symptom]:
    r"""Behind each residual add comes an activation, so that nothing passes the blocks unchanged.

    ## What it measures
    Residual blocks whose exit is behind an activation that acts on the sum (the original ResNet). Fires if most of
    more than `DEEP` = 160 blocks are so.

    ## Why it hurts
    The identity path is the reason why residual networks can be deep. A ReLU behind the add lets half of the changes
    through only, in one direction, and its slope multiplies the gradient of the skip in every block.

    ## When it is wrong
    At the depths of ordinary ResNets (up to about 50 blocks) it costs little, and does not fire.

    ## References
    He et al., "Identity mappings in deep residual networks", 2016, section 3 and table 1.
    """
    if profile.attribution is None:
        return
    active = {factor.block for factor in profile.attribution.factors if factor.kind == "activation"}
    blocks = [i for i, block in enumerate(profile.blocks) if block.residual is not None]
    found = [i for i in blocks if i in active]
    if len(blocks) > DEEP and len(found) > SHARE * len(blocks):
        yield Symptom(
            severity="warning",
            where=f"{profile.blocks[found[0]].name} … {profile.blocks[found[-1]].name}",
            message=f"{len(found)} residual blocks end in an activation on the stream itself: the skip is no identity",
            evidence={"blocks": float(len(found))},
            layers=(found[0], found[-1]),
        )
