"""The depth axis of a network, read from its graph: streams, blocks, residual adds and the placement of norms.

The ops on *every* path from an input to the loss, the dominators of the loss, form the stream. The ops between two of
them are a segment. A segment that multiplies by a weight begins a block, and the light segments after it (activation,
norm, dropout) belong to that block. A segment with many weights (U-Nets, unrolled recurrences) is replaced by the
longest path through it, and the blocks of that path are marked as bypassed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from leadline.readings.graph import HEAVY, NEUTRAL, ROOT, Flow, flow_from, is_weighted
from leadline.readings.residual import ResidualSum, find_norms, find_residual_sum, name_blocks
from leadline.records import DepthBlock, Gap, Op, Placement, ResidualAdd, Stream, Trace, Value

# Heuristic: the longest residual branch in wide use (MBConv with squeeze-and-excitation) has 5 weights in a row.
MIN_LONG_PATH_WEIGHTS = 8
# Keys: a norm before the branch, after the add, at the branch's output.
_PLACEMENTS: dict[tuple[bool, bool, bool], Placement] = {
    (False, False, False): "none",
    (True, False, False): "pre",
    (False, True, False): "post",
    (False, False, True): "output",
    (True, False, True): "sandwich",
    (True, True, False): "pre+post",
    (False, True, True): "post+output",
    (True, True, True): "all",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Ops between two neighboring points of the axis; `exit` is the later point and belongs to the segment."""

    ops: tuple[int, ...]
    exit: int
    weights: int
    sum: ResidualSum | None = None
    bypassed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """Streams and their blocks in order, and the inputs that could not be placed."""

    streams: tuple[Stream, ...]
    blocks: tuple[DepthBlock, ...]
    gaps: tuple[Gap, ...]
    segments: tuple[tuple[Segment, ...], ...] = ()
    """The segments of each block."""
    flows: tuple[Flow, ...] = ()
    """The part of the graph of each stream."""
    norms: frozenset[int] = frozenset()
    """Ops whose output is normalized."""


def read_structure(trace: Trace) -> Structure:
    """Streams and blocks of a trace, with the measured values of the trace."""
    norms = find_norms(trace)
    inputs = [value for value in trace.values if value.source == "input"]
    flows = _sort_flows([flow for flow in (flow_from(trace, value) for value in inputs) if flow is not None])
    streams: list[Stream] = []
    blocks: list[DepthBlock] = []
    segments_by_block: list[tuple[Segment, ...]] = []
    stream_flows: list[Flow] = []
    placed: set[int] = set()
    unplaced = [value.name for value in inputs]
    for flow in flows:
        segments = _segments(trace, flow, norms, placed)
        joins = 0 if streams and placed & set(flow.ops) else None
        placed |= set(flow.ops)
        if not any(segment.weights for segment in segments):
            continue
        groups = _move_final_norms(_group_segments(segments), norms)
        blocks += _blocks(trace, groups, norms, len(streams))
        streams.append(Stream(input=flow.source.name, blocks=len(groups), joins=joins))
        segments_by_block += map(tuple, groups)
        stream_flows.append(flow)
        unplaced.remove(flow.source.name)
    return Structure(
        streams=tuple(streams),
        blocks=tuple(blocks),
        gaps=_gaps(trace, unplaced, streams),
        segments=tuple(segments_by_block),
        flows=tuple(stream_flows),
        norms=norms,
    )


def _sort_flows(flows: Sequence[Flow]) -> list[Flow]:
    """The flows, with those first that others join: the decoder before its encoder."""

    def shared(flow: Flow) -> tuple[int, int]:
        others = {op for other in flows if other is not flow for op in other.ops}
        return len(others & set(flow.dominators)), len(flow.dominators)

    return sorted(flows, key=shared, reverse=True)


def _segments(trace: Trace, flow: Flow, norms: frozenset[int], placed: set[int]) -> list[Segment]:
    """Cut the flow at its dominators, up to the loss or to where it joins a stream that is already placed."""
    segments: list[Segment] = []
    start, remaining = ROOT, iter(flow.ops)
    for point in flow.dominators:
        if point in placed or _is_loss(trace, point):
            break
        inner = []
        for op in remaining:
            inner.append(op)
            if op == point:
                break
        segment = Segment(
            ops=tuple(inner), exit=point, weights=sum(trace.ops[op].kind in HEAVY for op in inner)
        )
        segments += _refine(trace, flow, segment, start, norms)
        start = point
    return segments if any(segment.weights for segment in segments) else _longest_tower(trace, flow, placed)


def _longest_tower(trace: Trace, flow: Flow, placed: set[int]) -> list[Segment]:
    """The longest path from the input, where paths meet only in the loss (an actor and its critic)."""
    ops = [op for op in flow.ops if op not in placed and not _is_loss(trace, op)]
    length, before = _lengths(trace, flow, ops, ROOT)
    last_weight = max(ops, key=lambda op: (length[op], -op), default=ROOT)
    return _bypassed(trace, _trace_back(before, last_weight, ROOT))


def _is_loss(trace: Trace, op: int) -> bool:
    return trace.ops[op].phase == "loss" or trace.ops[op].kind == "loss"


def _refine(trace: Trace, flow: Flow, segment: Segment, start: int, norms: frozenset[int]) -> list[Segment]:
    path = _longest_path(trace, flow, segment, start)
    if sum(is_weighted(trace.ops[op]) for op in path) >= MIN_LONG_PATH_WEIGHTS:
        return _bypassed(trace, path)
    return [replace(segment, sum=find_residual_sum(trace, flow, segment.ops, start, norms))]


def _longest_path(trace: Trace, flow: Flow, segment: Segment, start: int) -> list[int]:
    """The path through the segment that multiplies by the most weights."""
    _, before = _lengths(trace, flow, segment.ops, start)
    return _trace_back(before, segment.exit, start)


def _lengths(
    trace: Trace, flow: Flow, ops: Sequence[int], start: int
) -> tuple[dict[int, int], dict[int, int]]:
    """For each op, the number of weights on the longest path to it, and the op before it on that path."""
    length, before = {start: 0}, {start: start}
    for op in ops:
        before[op] = max((p for p in flow.parents[op] if p in length), key=length.__getitem__, default=start)
        length[op] = length[before[op]] + is_weighted(trace.ops[op])
    return length, before


def _trace_back(before: dict[int, int], op: int, start: int) -> list[int]:
    path = []
    while op != start:
        path.append(op)
        op = before[op]
    return path[::-1]


def _bypassed(trace: Trace, path: Sequence[int]) -> list[Segment]:
    return [
        Segment(ops=(op,), exit=op, weights=int(is_weighted(trace.ops[op])), bypassed=True) for op in path
    ]


def _blocks(
    trace: Trace, groups: Sequence[Sequence[Segment]], norms: frozenset[int], stream: int
) -> list[DepthBlock]:
    names = name_blocks(trace, [[op for segment in group for op in segment.ops] for group in groups])
    return [_block(trace, name, group, norms, stream) for name, group in zip(names, groups, strict=True)]


def _group_segments(segments: Sequence[Segment]) -> list[list[Segment]]:
    """The segments by block: a segment with a weight begins a block, light ones belong to the block before them."""
    groups: list[list[Segment]] = [[]]
    for segment in segments:
        if segment.weights and any(other.weights for other in groups[-1]):
            groups.append([])
        groups[-1].append(segment)
    return groups


def _move_final_norms(groups: list[list[Segment]], norms: frozenset[int]) -> list[list[Segment]]:
    """Move a norm between the last residual block of a stage and a head or downsampling layer to the latter.

    Post-norm blocks keep their norm: they are recognized by inner blocks that end in a norm too. Without inner blocks
    to compare with, the norm moves if the branch already has a norm. If no block follows (an encoder that ends in its
    norm), the norm becomes a last block.
    """
    residual = {i for i, group in enumerate(groups) if any(segment.sum for segment in group)}
    inner = [groups[i] for i in residual if i + 1 in residual]
    for i in sorted(residual, reverse=True):
        tail = [at for at, segment in enumerate(groups[i]) if segment.exit in norms and not segment.weights]
        is_post = all(_ends_in_norm(group, norms) for group in inner) if inner else not _has_pre(groups[i])
        if tail and not is_post and i + 1 not in residual:
            following = groups[i + 1] if i + 1 < len(groups) else []
            groups[i : i + 2] = [groups[i][: tail[0]], groups[i][tail[0] :] + following]
    return groups


def _ends_in_norm(group: Sequence[Segment], norms: frozenset[int]) -> bool:
    return any(segment.exit in norms and not segment.weights for segment in group)


def _has_pre(group: Sequence[Segment]) -> bool:
    return any(segment.sum is not None and segment.sum.norm_before for segment in group)


def _block(
    trace: Trace, name: str, group: Sequence[Segment], norms: frozenset[int], stream: int
) -> DepthBlock:
    ops = [trace.ops[op] for segment in group for op in segment.ops]
    exit_value = trace.values[_exit(trace, group)]
    residual_sum = next((segment.sum for segment in group if segment.sum is not None), None)
    predicting_op = _predicting_op(trace, exit_value)
    return DepthBlock(
        name=name,
        stream=stream,
        forward_ms=None if exit_value.forward is None else exit_value.forward.ms,
        backward_ms=None if exit_value.backward is None else exit_value.backward.ms,
        elements=math.prod(exit_value.shape),
        exit=exit_value.id,
        weights=sum(is_weighted(op) for op in ops),
        norms=sum(op.index in norms for op in ops),
        bypassed=any(segment.bypassed for segment in group),
        residual=None
        if residual_sum is None
        else _residual(trace, residual_sum, _ends_in_norm(group, norms)),
        params=tuple(dict.fromkeys(name for op in ops for name in op.params)),
        modules=tuple(dict.fromkeys(op.module for op in ops)),
        forward_ms_predicted=None if predicting_op is None else predicting_op.forward_ms_predicted,
        backward_ms_predicted=None if predicting_op is None else predicting_op.backward_ms_predicted,
        band=None if predicting_op is None else predicting_op.band,
    )


def _predicting_op(trace: Trace, value: Value) -> Op | None:
    """The op that stores the prediction for this value: it wrote the value as its first floating output."""
    op = None if value.op is None else trace.ops[value.op]
    first = None if op is None else next((each for each in op.outputs if trace.values[each].floating), None)
    return op if first == value.id else None


def _exit(trace: Trace, group: Sequence[Segment]) -> int:
    """The value at which the block is measured: the last one with both statistics, else the last with one."""
    values = [trace.values[trace.ops[segment.exit].outputs[0]] for segment in reversed(group)]
    both = (value.id for value in values if value.forward is not None and value.backward is not None)
    one = (value.id for value in values if value.forward is not None)
    return next(both, next(one, values[0].id))


def _residual(trace: Trace, add: ResidualSum, norm_after: bool) -> ResidualAdd:
    skip_scale = _times(_scaled_by(trace, add.skip, add.start), abs(add.skip_factor))
    return ResidualAdd(
        placement=_PLACEMENTS[add.norm_before, norm_after, add.norm_inside],
        projected=add.projected,
        skip_ms=_times(_ms(trace, add.skip), add.skip_factor**2),
        branch_ms=_times(_ms(trace, add.branch), add.branch_factor**2),
        add=trace.ops[add.add].outputs[0],
        skip_scale=None if add.projected else skip_scale,
        branch_scale=_times(_scaled_by(trace, add.branch, add.start), abs(add.branch_factor)),
        branch_mean_share=_mean_share(trace, add.branch),
    )


def _ms(trace: Trace, value: int) -> float | None:
    stats = trace.values[value].forward
    return None if stats is None else stats.ms


def _times(number: float | None, factor: float) -> float | None:
    return None if number is None else number * factor


def _scaled_by(trace: Trace, value: int, start: int) -> float | None:
    """The factor that neutral ops apply to a term of a residual add; it is measured, so learned factors count."""
    scale = 1.0
    producer = trace.values[value].op
    while producer is not None and producer != start and trace.ops[producer].kind in NEUTRAL:
        op = trace.ops[producer]
        before = next((each for each in op.inputs if _ms(trace, each) is not None), None)
        if before is None:
            return None
        if op.kind == "scale":
            old, new = _ms(trace, before), _ms(trace, value)
            if not old or new is None:
                return None
            scale *= math.sqrt(new / old)
        value = before
        producer = trace.values[value].op
    return scale


def _mean_share(trace: Trace, value: int) -> float | None:
    stats = trace.values[value].forward
    return None if stats is None or not stats.ms > 0 else min(stats.mean**2 / stats.ms, 1.0)


def _gaps(trace: Trace, unplaced: Sequence[str], streams: Sequence[Stream]) -> tuple[Gap, ...]:
    gaps = []
    if streams and unplaced:
        why = "no chain of weight layers starts from them (masks, labels, positions)"
        gaps.append(Gap(what="batch inputs that are not a depth axis", why=why, where=tuple(unplaced)))
    if not streams:
        why = "no path of weight layers leads from a batch input to the loss"
        gaps.append(Gap(what="the depth axis", why=why, where=tuple(unplaced)))
    return tuple(gaps)
