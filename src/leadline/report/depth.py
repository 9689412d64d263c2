"""Numbers of the depth axis: the blocks of a stream, their change per block, and a summary of their structure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from leadline.records import DepthBlock, Profile, ResidualAdd
from leadline.report.charts.sparkline import mark
from leadline.text import joined, plural

# Derived: blocks before the head with two changes between them, the fewest that have a common factor.
MIN_BLOCKS_OF_RATE = 3


def stream_blocks(profile: Profile, index: int) -> list[DepthBlock]:
    """The blocks of one stream in order of depth; for a model without weights, with the predicted moments."""
    return [block for block in profile.shown.blocks if block.stream == index]


def gains(profile: Profile, index: int) -> tuple[float | None, float | None]:
    """The change per block of one stream, forward and backward, each in the direction in which it runs.

    The head is left out, because its output has another size and meaning. The gradient is compared by its sum of
    squares and not by its mean, because that is what a layer of another width preserves. Checks read the same numbers.
    """
    blocks = stream_blocks(profile, index)
    body = blocks[:-1] if profile.streams[index].joins is None else blocks
    powers = [None if each.backward_ms is None else each.backward_ms * each.elements for each in body]
    return gain([each.forward_ms for each in body]), gain(powers[::-1])


def gain(values: Sequence[float | None]) -> float | None:
    """Geometric mean of the change per block from the first to the last measured value.

    None if fewer than two were measured, or if any of them is zero or not finite: then there is no mean.
    """
    measured = [(place, value) for place, value in enumerate(values) if value is not None]
    if len(measured) < 2 or any(mark(value) for _, value in measured):
        return None
    (start, first), (stop, last) = measured[0], measured[-1]
    return math.exp((math.log(last) - math.log(first)) / (stop - start))


def rates(profile: Profile, index: int) -> tuple[float | None, float | None]:
    """The change per block as a reader may take it: None where it is not a rate.

    One change is a jump, not a rate; and the output of a recurrent layer has a scale of its own, whatever its input.
    """
    body = len(stream_blocks(profile, index)) - (profile.streams[index].joins is None)
    is_recurrent = profile.facts is not None and bool(profile.facts.recurrences)
    return (None, None) if body < MIN_BLOCKS_OF_RATE or is_recurrent else gains(profile, index)


def block_summary(blocks: Sequence[DepthBlock]) -> str:
    """How many blocks there are, how many are residual, and where the norms of the residual ones are."""
    if not blocks:
        return plural(0, "block")
    residual = [block.residual for block in blocks if block.residual is not None]
    bypassed = sum(block.bypassed for block in blocks)
    projected = sum(each.projected for each in residual)
    return joined(
        plural(len(blocks), "block"),
        f"{len(residual)} residual ({_placements(residual)})" if residual else "no residual connections",
        f"{projected} with a projected skip" if projected else "",
        f"{bypassed} bypassed by other paths" if bypassed else "",
    )


def _placements(residual: Sequence[ResidualAdd]) -> str:
    counts = Counter(each.placement for each in residual).most_common()
    names = ["without norms" if placement == "none" else f"{placement}-norm" for placement, _ in counts]
    if len(counts) == 1:
        return names[0]
    return ", ".join(f"{amount} {name}" for name, (_, amount) in zip(names, counts, strict=True))
