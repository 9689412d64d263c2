"""The measured signal along the depth axis: its jumps, its first non-finite value, its depth scale."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from leadline.readings.limits import MAX_EFOLDS_SGD
from leadline.records import Anomaly, DepthBlock, DepthScale, Direction, Jump, Op, Stats, Stream, Trace, Value

JUMP = 4.0  # ours, for display only: smaller factors are the ordinary business of a layer
JUMPS_SHOWN = 4


def find_jumps(blocks: Sequence[DepthBlock]) -> tuple[Jump, ...]:
    """The blocks across which the second moment changes most, strongest first."""
    pairs = [(before, after) for before, after in pairwise(blocks) if before.stream == after.stream]
    jumps = [jump for before, after in pairs for jump in _across(before, after)]
    large = [jump for jump in jumps if abs(math.log(jump.factor)) > math.log(JUMP)]
    return tuple(sorted(large, key=lambda jump: -abs(math.log(jump.factor)))[:JUMPS_SHOWN])


def find_anomalies(trace: Trace) -> tuple[Anomaly, ...]:
    """Where NaN or infinity first appears, in each direction; only if it reaches the loss or a gradient."""
    return tuple(found for found in (_forward_anomaly(trace), _backward_anomaly(trace)) if found is not None)


def _across(before: DepthBlock, after: DepthBlock) -> Iterator[Jump]:
    if (forward := _ratio(after.forward_ms, before.forward_ms)) is not None:
        yield Jump(direction="forward", block=after.name, factor=forward)
    if (backward := _ratio(before.backward_ms, after.backward_ms)) is not None:
        yield Jump(direction="backward", block=after.name, factor=backward)


def _ratio(new: float | None, old: float | None) -> float | None:
    """None where a logarithm of the ratio would say nothing: not measured, zero, not finite, or out of range."""
    if not new or not old:
        return None
    ratio = new / old
    return ratio if math.isfinite(ratio) and ratio > 0 else None


def _forward_anomaly(trace: Trace) -> Anomaly | None:
    """Walk back from the loss, while values are not finite, to the op that made the first such value."""
    value = None if trace.loss_value is None else trace.values[trace.loss_value]
    if value is None or not _sick(value.forward):
        return None
    while value.op is not None:
        infected = [trace.values[each] for each in trace.ops[value.op].inputs if _infects(trace.values[each])]
        if not infected:
            break
        value = infected[0]
    return _anomaly(trace, "forward", value, value.op)


def _backward_anomaly(trace: Trace) -> Anomaly | None:
    """Gradients arrive in reverse order: the last value whose gradient is sick was the first; its reader made it so."""
    sick = [value for value in trace.values if _sick(value.backward)]
    if not sick:
        return None
    value = max(sick, key=lambda each: -1 if each.op is None else each.op)
    readers = [op for op in trace.ops if value.id in op.inputs]
    healthy = [op for op in readers if not any(_sick(trace.values[out].backward) for out in op.outputs)]
    culprits = healthy or readers
    return _anomaly(trace, "backward", value, culprits[-1].index if culprits else None)


def _anomaly(trace: Trace, direction: Direction, value: Value, index: int | None) -> Anomaly:
    op = None if index is None else trace.ops[index]
    stats = value.forward if direction == "forward" else value.backward
    return Anomaly(
        direction=direction,
        op="" if op is None else op.name,
        module="" if op is None else op.module,
        value=value.id,
        non_finite=0 if stats is None else stats.non_finite,
        count=0 if stats is None else stats.count,
        source=_source(trace, value, op) if direction == "forward" else "",
    )


def _source(trace: Trace, value: Value, op: Op | None) -> str:
    """The batch input or parameter that was not finite to begin with; "" if the op made it out of finite numbers."""
    if op is None:
        return value.name
    sick = {each.name for each in trace.parameters if each.ms is not None and not math.isfinite(each.ms)}
    return next((name for name in op.params if name in sick), "")


def _sick(stats: Stats | None) -> bool:
    return stats is not None and stats.non_finite > 0


def _infects(value: Value) -> bool:
    """Not finite, and not merely masked: -inf alone is how attention masks are written."""
    return _sick(value.forward) and value.forward is not None and value.forward.mean != -math.inf


# The depth scale of a real network, off theory's prediction for the blocks of its depth axis.

FEWEST = 4  # blocks; ours: with fewer, one odd layer cannot be told from a law


def read_depth_scale(blocks: Sequence[DepthBlock], streams: Sequence[Stream]) -> DepthScale | None:
    r"""$\chi$, the geometric mean a block of the predicted power of the gradient, seen in its own direction.

    Power, the sum of squares, is what a layer of another width preserves. Without the head. A stack counts as critical
    if it changes by less than one e-fold over its own depth: no measurement at this depth could tell it from one. None
    if fewer than `FEWEST` blocks are predicted. `q` is what theory predicts at the last block.
    """
    own = [block for block in blocks if block.stream == 0]
    body = own[:-1] if streams and streams[0].joins is None else own
    powers = [  # logarithms: over a deep stack the powers themselves may differ by more than a float holds
        math.log(block.backward_ms_predicted) + math.log(block.elements)
        for block in body
        if block.backward_ms_predicted is not None and 0 < block.backward_ms_predicted < math.inf
    ]
    if len(powers) < FEWEST:
        return None
    folds = powers[0] - powers[-1]
    each = folds / (len(powers) - 1)
    xi = math.inf if each == 0 else 1 / abs(each)
    return DepthScale(
        chi=math.exp(each),
        xi=xi,
        phase="critical" if abs(folds) < 1 else "ordered" if folds < 0 else "chaotic",
        trainable_depth=MAX_EFOLDS_SGD * xi,
        q=body[-1].forward_ms_predicted,
    )
