"""F104: units that are zero for every sample."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import each_block, geometric
from leadline.checks._ranges import range_name, spans
from leadline.records import LimitLevel, Margin, Profile, Units

# Derived: share of a block's units. A single sample already leaves half of the units of a ReLU at zero.
MAX_DEAD_SHARE = 0.75
# Heuristic: beyond this share of a block's units, those that are left cannot carry a layer.
MIN_ERROR_SHARE = 0.97


def _margins(profile: Profile) -> Iterator[Margin]:
    shares = [
        _share(block.units) for block in profile.blocks if block.units is not None and block.units.count
    ]
    if shares:
        everywhere = LimitLevel(quantity="units", level=MAX_DEAD_SHARE, blocks=(0, len(profile.blocks) - 1))
        yield Margin(
            quantity="dead units of the worst block",
            value=max(shares),
            limit=MAX_DEAD_SHARE,
            over_depth=everywhere,
        )


@check(
    code="F104",
    name="dead-units",
    since="0.1.0",
    explains=("B201", "B206", "F102", "F106", "U522", "U506"),
    margins=_margins,
    sick=each_block(geometric(blocks=6), units=Units(count=64, dead=60)),
    healthy=each_block(geometric(blocks=6), units=Units(count=64, dead=33)),
)
def dead_units(profile: Profile) -> Iterator[Symptom]:
    r"""Most units of an activation are zero for every sample of the batch.

    ## What it measures
    For each block, the share of activation units that are exactly zero for every sample and position. It is not the
    share of zero elements: half of those are zero after a ReLU in every healthy network. Fires beyond `MAX_DEAD_SHARE`
    = 75 %; it is an error beyond `MIN_ERROR_SHARE` = 97 %.

    ## Why it hurts
    A dead unit passes neither signal nor gradient. Its own weights get no gradient either, so it stays dead. The
    reasons are large negative biases, inputs with a large mean, or steps that were too large.

    ## When it is wrong
    If all samples are alike (a batch of one, or the end of a deep plain network), half of the units are zero for all of
    them without being dead; the threshold allows for that. A zero that a smooth activation makes of a zero (a gate
    whose matrix starts at zero) has a slope and does not count. A mixture of experts may leave some units unused.

    ## References
    Lu et al., "Dying ReLU and initialization", 2019, section 2.
    """
    shares = [_share(block.units) for block in profile.blocks]
    for span in spans([share > MAX_DEAD_SHARE for share in shares]):
        worst = max(shares[span[0] : span[1] + 1])
        blocks = span[1] - span[0] + 1
        yield Symptom(
            severity="error" if worst > MIN_ERROR_SHARE else "warning",
            where=range_name(profile, span),
            message=f"up to {100 * worst:.0f} % of the units of a block are zero for every sample: "
            f"{blocks} {'block is' if blocks == 1 else 'blocks are'} affected",
            action="Initialize the biases of these layers with `nn.init.zeros_(layer.bias)` and center the input, or "
            "replace `nn.ReLU()` with `nn.LeakyReLU(0.01)`.",
            evidence={"largest_share": worst, "blocks": float(blocks)},
            layers=span,
        )


def _share(units: Units | None) -> float:
    return 0.0 if units is None or not units.count else units.dead / units.count
