"""F103: units that stay at a bound of their activation."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import each_block, geometric
from leadline.checks._ranges import range_name, spans
from leadline.records import Profile, Units

# Heuristic: share of a block's units; with fewer, the other half still passes gradients.
MAX_SATURATED_SHARE = 0.5
# Heuristic: beyond this share of a block's units, those that are left cannot carry a layer.
MIN_WARNING_SHARE = 0.95


@check(
    code="F103",
    name="saturated-units",
    since="0.1.0",
    refuted_by="learning",
    explains=("B201", "B204", "U522", "U525"),
    sick=each_block(geometric(blocks=6), units=Units(count=64, dead=0, saturated=60)),
    healthy=each_block(geometric(blocks=6), units=Units(count=64, dead=0, saturated=10)),
)
def saturated_units(profile: Profile) -> Iterator[Symptom]:
    r"""Most units of a bounded activation are at its bounds for every sample.

    ## What it measures
    For each block with sigmoid, tanh or a similar activation, the share of units that are within 2 % of a bound for
    every sample and position of the batch. It is a note above `MAX_SATURATED_SHARE` = 50 % and a warning above
    `MIN_WARNING_SHARE` = 95 %.

    ## Why it hurts
    The slope of a saturated unit is almost zero: no gradient passes it, and its output does not depend on the input.

    ## When it is wrong
    A gate may be open or closed for a whole batch for good reason. In a batch of a few samples units may look saturated
    that are not.

    ## References
    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010, section 3.
    """
    shares = [_share(block.units) for block in profile.blocks]
    for span in spans([share > MAX_SATURATED_SHARE for share in shares]):
        worst = max(shares[span[0] : span[1] + 1])
        blocks = span[1] - span[0] + 1
        yield Symptom(
            severity="warning" if worst > MIN_WARNING_SHARE else "info",
            where=range_name(profile, span),
            message=f"up to {100 * worst:.0f} % of the units of a block are at a bound of their activation for every "
            f"sample: {blocks} {'block is' if blocks == 1 else 'blocks are'} affected",
            action="Initialize the weights of these layers with `nn.init.xavier_normal_(layer.weight)`, or put "
            "`nn.LayerNorm` before the activation.",
            evidence={"largest_share": worst, "blocks": float(blocks)},
            layers=span,
        )


def _share(units: Units | None) -> float:
    return (
        0.0 if units is None or not units.count or units.saturated is None else units.saturated / units.count
    )
