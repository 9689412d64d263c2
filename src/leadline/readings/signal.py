"""The measured signal along the depth axis: its jumps, and its depth scale."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from leadline.readings.limits import MAX_EFOLDS_SGD
from leadline.records import DepthBlock, DepthScale, Jump, Stream
from leadline.records.cliffs import DepthChange, depth_change
from leadline.records.profile import Phase

# Heuristic: smaller factors are normal for a layer; for display only.
MIN_JUMP_FACTOR = 4.0
# Heuristic: more would crowd the report.
MAX_JUMPS = 4
# Derived: share of the change in the flatter half of a stack. A geometric law has 1/2; a power law has ln 2 / ln L,
# which is less beyond 16 blocks.
MIN_GEOMETRIC_SHARE = 0.25
# Heuristic: with fewer blocks one odd layer cannot be distinguished from a law.
MIN_DEPTH_SCALE_BLOCKS = 4


def find_jumps(blocks: Sequence[DepthBlock]) -> tuple[Jump, ...]:
    """The blocks across which the second moment changes most, the largest change first."""
    pairs = [(before, after) for before, after in pairwise(blocks) if before.stream == after.stream]
    jumps = [jump for before, after in pairs for jump in _jumps_between(before, after)]
    large = [jump for jump in jumps if abs(math.log(jump.factor)) > math.log(MIN_JUMP_FACTOR)]
    return tuple(sorted(large, key=lambda jump: -abs(math.log(jump.factor)))[:MAX_JUMPS])


def _jumps_between(before: DepthBlock, after: DepthBlock) -> Iterator[Jump]:
    if (forward := _ratio(after.forward_ms, before.forward_ms)) is not None:
        yield Jump(direction="forward", block=after.name, factor=forward)
    if (backward := _ratio(before.backward_ms, after.backward_ms)) is not None:
        yield Jump(direction="backward", block=after.name, factor=backward)


def _ratio(new: float | None, old: float | None) -> float | None:
    """The ratio; None where its logarithm is not defined or one of the two was not measured."""
    if not new or not old:
        return None
    ratio = new / old
    return ratio if math.isfinite(ratio) and ratio > 0 else None


# The depth scale of a network, from the predicted moments of its blocks.


def read_depth_scale(blocks: Sequence[DepthBlock], streams: Sequence[Stream]) -> DepthScale | None:
    r"""The depth scale: $\chi$ is the mean factor per block of the predicted gradient power, in backward direction.

    Power is the sum of squares, which a change of width preserves. The mean is geometric and excludes the head and
    cliffs, single blocks that are no part of a law. Only a geometric law has a depth scale: a stack counts as critical
    if the power changes by less than one e-fold over its depth, because no measurement at this depth could show a
    difference, or if it follows a power of depth, as in pre-norm networks. Then $\chi$ is that of the flatter half.
    None if fewer than `MIN_DEPTH_SCALE_BLOCKS` blocks are predicted. `q` is the predicted second moment at the last
    block.
    """
    own = [block for block in blocks if block.stream == 0]
    body = own[:-1] if streams and streams[0].joins is None else own
    log_powers = [  # over a deep stack the powers themselves may exceed the range of a float
        math.log(block.backward_ms_predicted) + math.log(block.elements)
        for block in body[::-1]
        if block.backward_ms_predicted is not None and 0 < block.backward_ms_predicted < math.inf
    ]
    if len(log_powers) < MIN_DEPTH_SCALE_BLOCKS:
        return None
    change = depth_change(log_powers)
    per_block, phase, geometric = change.per_block, _phase(change.rest), is_geometric(change)
    if not geometric and phase != "critical":
        opposed = change.halves[0] * change.halves[1] < 0
        per_block = 0.0 if opposed else 2 * min(change.halves, key=abs) / len(change.even_steps)
        phase = "critical"
    xi = math.inf if per_block == 0 or not geometric else 1 / abs(per_block)
    return DepthScale(
        chi=math.exp(per_block),
        xi=xi,
        phase=phase,
        trainable_depth=MAX_EFOLDS_SGD * xi,
        q=body[-1].forward_ms_predicted,
    )


def is_geometric(change: DepthChange) -> bool:
    """Whether both halves of a stack take part in a change, as in a geometric law and unlike in a power law."""
    first, second = change.halves
    return first * second > 0 and min(abs(first), abs(second)) > MIN_GEOMETRIC_SHARE * abs(change.rest)


def _phase(e_folds: float) -> Phase:
    if abs(e_folds) < 1:
        return "critical"
    return "ordered" if e_folds < 0 else "chaotic"
