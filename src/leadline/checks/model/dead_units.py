"""F104: units that are zero for every sample."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import each_block, geometric
from leadline.checks._ranges import range_name, spans
from leadline.records import Margin, Profile, Units

MANY = 0.75  # of a block's units; derived: one sample alone leaves half of the units of a ReLU at zero
MOST = 0.97  # of a block's units: what is left cannot carry a layer (ours)


def _margins(profile: Profile) -> Iterator[Margin]:
    shares = [
        _share(block.units) for block in profile.blocks if block.units is not None and block.units.count
    ]
    if shares:
        yield Margin(quantity="dead units of the worst block", value=max(shares), limit=MANY)


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
    Of each block, the share of activation units that are exactly zero for every sample and position. Not the share of
    zero elements: behind a ReLU half of these are zero in every healthy network. Fires beyond `MANY` = 75 %; an error
    beyond `MOST` = 97 %.

    ## Why it hurts
    A dead unit passes neither signal nor gradient, so its own weights get no gradient either and it stays dead. It
    comes of large negative biases, of inputs with a large mean, or of steps that were too large.

    ## When it is wrong
    Where all samples are alike (a batch of one, or the end of a deep plain network) half of the units are zero for all
    of them without being dead; the threshold leaves room for that. A zero that a smooth activation makes of a zero (a
    gate whose matrix starts at zero) has a slope and is not counted. A mixture of experts may rightly leave some
    unused.

    ## References
    Lu et al., "Dying ReLU and initialization", 2019, section 2.
    """
    shares = [_share(block.units) for block in profile.blocks]
    for span in spans([share > MANY for share in shares]):
        worst = max(shares[span[0] : span[1] + 1])
        yield Symptom(
            severity="error" if worst > MOST else "warning",
            where=range_name(profile, span),
            message=f"up to {100 * worst:.0f} % of the units of a block are zero for every sample "
            f"({span[1] - span[0] + 1} blocks)",
            evidence={"largest_share": worst, "blocks": float(span[1] - span[0] + 1)},
            layers=span,
        )


def _share(units: Units | None) -> float:
    return 0.0 if units is None or not units.count else units.dead / units.count
