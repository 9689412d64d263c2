"""Numbers of the depth axis: the blocks of a stream, their change per block, and a summary of their structure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from leadline.records import DepthBlock, Profile, ResidualAdd
from leadline.records.cliffs import DepthChange, depth_change
from leadline.report.charts.sparkline import mark
from leadline.text import growth, joined, plural

if TYPE_CHECKING:
    from leadline.records.report import Report

# Derived: blocks before the head with two changes between them, the fewest that have a common factor.
MIN_BLOCKS_OF_RATE = 3


def stream_blocks(profile: Profile, index: int) -> list[DepthBlock]:
    """The blocks of one stream in order of depth; for a model without weights, with the predicted moments."""
    return [block for block in profile.shown.blocks if block.stream == index]


def gains(profile: Profile, index: int) -> tuple[float | None, float | None]:
    """The change per block of one stream, forward and backward, each in the direction in which it runs.

    The head is left out, because its output has another size and meaning, and so are cliffs: single blocks that change
    the signal far more than the others. The gradient is compared by its sum of squares and not by its mean, because
    that is what a layer of another width preserves. Checks read the same numbers.
    """
    body = _body(profile, index)
    return gain([each.forward_ms for each in body]), gain(_powers(body)[::-1])


def cliff_names(profile: Profile, index: int) -> tuple[str, ...]:
    """The blocks of one stream that `gains` leaves out, in order of depth."""
    body = _body(profile, index)
    last = len(body) - 1
    forward, backward = _change([each.forward_ms for each in body]), _change(_powers(body)[::-1])
    places: set[int] = set()
    if forward is not None:
        places.update(forward.start + step + 1 for step in forward.change.cliffs)
    if backward is not None:  # the gradient crosses a block from its exit to its entry
        places.update(last - backward.start - step for step in backward.change.cliffs)
    return tuple(body[place].name for place in sorted(places))


def gain(values: Sequence[float | None]) -> float | None:
    """Geometric mean of the change per block from the first to the last measured value, without cliffs.

    None if fewer than two were measured, or if any of them is zero or not finite: then there is no mean.
    """
    measured = _change(values)
    return None if measured is None else growth(measured.change.per_block)


class _Measured(NamedTuple):
    """The change from the first measured value on."""

    start: int
    change: DepthChange


def _change(values: Sequence[float | None]) -> _Measured | None:
    measured = [(place, value) for place, value in enumerate(values) if value is not None]
    if len(measured) < 2 or any(mark(value) for _, value in measured):
        return None
    logs = [math.log(measured[0][1])]
    for (start, first), (stop, last) in pairwise(measured):  # values that are missing lie on a line
        step = (math.log(last) - math.log(first)) / (stop - start)
        logs += [math.log(first) + step * (place - start) for place in range(start + 1, stop + 1)]
    return _Measured(measured[0][0], depth_change(logs))


def _body(profile: Profile, index: int) -> list[DepthBlock]:
    blocks = stream_blocks(profile, index)
    return blocks[:-1] if profile.streams[index].joins is None else blocks


def _powers(body: Sequence[DepthBlock]) -> list[float | None]:
    return [None if each.backward_ms is None else each.backward_ms * each.elements for each in body]


def trainable_depth(report: Report) -> float | None:
    """How many blocks such a stack can have; None if it is not known, or if the verdict on this stack refutes it."""
    scale = report.profile.depth_scale
    if scale is None or (report.verdict == "trains" and scale.trainable_depth < len(report.profile.blocks)):
        return None
    return scale.trainable_depth


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
