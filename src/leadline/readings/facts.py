"""Everything that rules judge beside the depth axis, read off a trace."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from leadline.ops.family import words
from leadline.readings.attentions import read_attentions, read_recurrences
from leadline.readings.ends import read_head, read_precision, read_sources
from leadline.readings.structure import Segment, Structure
from leadline.readings.weights import find_places, read_clones, read_weights
from leadline.records import Block, Facts, Op, Trace, Units, Value

# Activations with f(0) = 0 and a slope there: a zero that comes of a zero learns (derived).
ALIVE_AT_ZERO = words("silu gelu mish tanh elu celu selu softsign hardswish hardtanh erf leaky_relu prelu")


def read_facts(trace: Trace, structure: Structure) -> Facts:
    """Weights, clones, attention, recurrences, inputs, the head and the dtype."""
    places = find_places(trace, structure)
    weights = read_weights(trace, structure, places)
    return Facts(
        weights=weights,
        clones=read_clones(trace, structure),
        attentions=tuple(read_attentions(trace, places)),
        recurrences=tuple(read_recurrences(trace, places)),
        sources=tuple(read_sources(trace, structure, weights)),
        head=read_head(trace),
        precision=read_precision(trace),
    )


def with_likeness(trace: Trace, structure: Structure) -> tuple[Block, ...]:
    """The blocks, each with how alike its samples are, its units and its mean."""
    return tuple(
        msgspec.structs.replace(
            block,
            likeness=_likeness(trace, segments),
            units=_units(trace, segments),
            mean_share=_mean_share(trace.values[block.exit]),
        )
        for block, segments in zip(structure.blocks, structure.segments, strict=True)
    )


def likeness(value: Value) -> float | None:
    r"""Mean correlation of the samples, $\rho = (T s - 1) / (T - 1)$.

    $T$ vectors, of which the mean has the share $s$ of the second moment. Not centred: a mean that all of them share
    counts. With several positions a sample, all are taken together.
    """
    if value.common_ms is None or value.forward is None or len(value.shape) < 2 or not value.forward.ms > 0:
        return None
    units = value.shape[-1] if len(value.shape) <= 3 else value.shape[1]
    vectors = value.forward.count / units
    if vectors < 2:
        return None
    found = (vectors * value.common_ms / value.forward.ms - 1) / (vectors - 1)
    return min(found, 1.0) if math.isfinite(found) else None


def _likeness(trace: Trace, segments: Sequence[Segment]) -> float | None:
    """That of the last value on the axis of which it is known."""
    for segment in reversed(segments):
        found = likeness(trace.values[trace.ops[segment.exit].outputs[0]])
        if found is not None:
            return found
    return None


def _units(trace: Trace, segments: Sequence[Segment]) -> Units | None:
    ops = [trace.ops[op] for segment in segments for op in segment.ops]
    found = [(op, units) for op in ops if (units := trace.values[op.outputs[0]].units) is not None]
    if not found:
        return None
    bounded = [units.saturated for _, units in found if units.saturated is not None]
    return Units(
        count=sum(units.count for _, units in found),
        dead=sum(units.dead for op, units in found if not _rests_at_zero(trace, op)),
        saturated=sum(bounded) if bounded else None,
    )


def _rests_at_zero(trace: Trace, op: Op) -> bool:
    """All that the activation reads is zero, where it has a slope: a gate whose matrix starts at zero."""
    read = trace.values[op.inputs[0]].forward if op.inputs else None
    return op.name in ALIVE_AT_ZERO and read is not None and read.zero_share == 1.0


def _mean_share(value: Value) -> float | None:
    stats = value.forward
    if stats is None or not stats.ms > 0 or not math.isfinite(stats.ms):
        return None
    return min(stats.mean**2 / stats.ms, 1.0)
