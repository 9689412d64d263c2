"""The depth axis of a network, read off its graph: streams, blocks, residual adds and where the norms sit.

The ops through which *every* path from an input to the loss must pass form the stream. What lies between two of them
is a segment; a segment that multiplies by a weight begins a block, and the light ones behind it (activation, norm,
dropout) belong to it. Where no such waist exists for long (U-Nets, unrolled recurrences), the longest path through
the segment serves as axis, and its blocks are marked as bypassed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from leadline.readings.graph import HEAVY, NEUTRAL, ROOT, Flow, flow_from, is_weighted
from leadline.readings.residual import Sum, find_norms, find_sum, name_blocks
from leadline.records import DepthBlock, Gap, Op, Placement, ResidualAdd, Stream, Trace, Value

LONG_SEGMENT = (
    8  # weights in a row; ours: the longest residual branch in wide use (MBConv with squeeze-excite) has 5
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Ops between two neighbouring points of the axis; `exit` is the later point and belongs to it."""

    ops: tuple[int, ...]
    exit: int
    weights: int
    sum: Sum | None = None
    bypassed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """Streams and their blocks, in order, and what could not be placed."""

    streams: tuple[Stream, ...]
    blocks: tuple[DepthBlock, ...]
    gaps: tuple[Gap, ...]
    segments: tuple[tuple[Segment, ...], ...] = ()
    """The segments that each block is made of."""
    flows: tuple[Flow, ...] = ()
    """The part of the graph that each stream runs through."""
    norms: frozenset[int] = frozenset()
    """Ops whose output is normalised."""


def read_structure(trace: Trace) -> Structure:
    """Streams and blocks of a trace; the measured values are those of the trace."""
    norms = find_norms(trace)
    flows = _ordered(
        [flow for value in trace.values if value.source == "input" if (flow := flow_from(trace, value))]
    )
    streams: list[Stream] = []
    blocks: list[DepthBlock] = []
    grouped: list[tuple[Segment, ...]] = []
    used: list[Flow] = []
    claimed: set[int] = set()
    unplaced = [value.name for value in trace.values if value.source == "input"]
    for flow in flows:
        segments = _segments(trace, flow, norms, claimed)
        joins = 0 if streams and claimed & set(flow.ops) else None
        claimed |= set(flow.ops)
        if not any(segment.weights for segment in segments):
            continue
        groups = _norms_to_what_follows(_grouped(segments), norms)
        blocks += _blocks(trace, groups, norms, len(streams))
        streams.append(Stream(input=flow.source.name, blocks=len(groups), joins=joins))
        grouped += map(tuple, groups)
        used.append(flow)
        unplaced.remove(flow.source.name)
    return Structure(
        streams=tuple(streams),
        blocks=tuple(blocks),
        gaps=_gaps(trace, unplaced, streams),
        segments=tuple(grouped),
        flows=tuple(used),
        norms=norms,
    )


def _ordered(flows: Sequence[Flow]) -> list[Flow]:
    """The stream that runs through what others merely flow into comes first: the decoder before its encoder."""

    def shared(flow: Flow) -> tuple[int, int]:
        others = {op for other in flows if other is not flow for op in other.ops}
        return len(others & set(flow.waist)), len(flow.waist)

    return sorted(flows, key=shared, reverse=True)


def _segments(trace: Trace, flow: Flow, norms: frozenset[int], claimed: set[int]) -> list[Segment]:
    """Cut the flow at its waist, up to the loss or to where it joins a stream that is already placed."""
    segments: list[Segment] = []
    start, todo = ROOT, iter(flow.ops)
    for point in flow.waist:
        if point in claimed or _is_loss(trace, point):
            break
        inner = []
        for op in todo:
            inner.append(op)
            if op == point:
                break
        segment = Segment(
            ops=tuple(inner), exit=point, weights=sum(trace.ops[op].kind in HEAVY for op in inner)
        )
        segments += _refined(trace, flow, segment, start, norms)
        start = point
    return segments if any(segment.weights for segment in segments) else _tower(trace, flow, claimed)


def _tower(trace: Trace, flow: Flow, claimed: set[int]) -> list[Segment]:
    """Where the ways from the input meet in the loss only (an actor beside its critic), the longest of them."""
    ops = [op for op in flow.ops if op not in claimed and not _is_loss(trace, op)]
    length, before = _lengths(trace, flow, ops, ROOT)
    top = max(ops, key=lambda op: (length[op], -op), default=ROOT)  # its last weight: behind that is the loss
    return _bypassed(trace, _traced_back(before, top, ROOT))


def _is_loss(trace: Trace, op: int) -> bool:
    return trace.ops[op].phase == "loss" or trace.ops[op].kind == "loss"


def _refined(trace: Trace, flow: Flow, segment: Segment, start: int, norms: frozenset[int]) -> list[Segment]:
    path = _longest_path(trace, flow, segment, start)
    if sum(is_weighted(trace.ops[op]) for op in path) >= LONG_SEGMENT:
        return _bypassed(trace, path)
    return [replace(segment, sum=find_sum(trace, flow, segment.ops, start, norms))]


def _longest_path(trace: Trace, flow: Flow, segment: Segment, start: int) -> list[int]:
    """The path through the segment that multiplies by the most weights."""
    _, before = _lengths(trace, flow, segment.ops, start)
    return _traced_back(before, segment.exit, start)


def _lengths(
    trace: Trace, flow: Flow, ops: Sequence[int], start: int
) -> tuple[dict[int, int], dict[int, int]]:
    """By op, how many weights the longest path to it has, and the op before it on that path."""
    length, before = {start: 0}, {start: start}
    for op in ops:
        before[op] = max((p for p in flow.parents[op] if p in length), key=length.__getitem__, default=start)
        length[op] = length[before[op]] + is_weighted(trace.ops[op])
    return length, before


def _traced_back(before: dict[int, int], op: int, start: int) -> list[int]:
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


def _grouped(segments: Sequence[Segment]) -> list[list[Segment]]:
    """A segment with a weight begins a block; light ones belong to the block before them (the first, to the first)."""
    groups: list[list[Segment]] = [[]]
    for segment in segments:
        if segment.weights and any(other.weights for other in groups[-1]):
            groups.append([])
        groups[-1].append(segment)
    return groups


def _norms_to_what_follows(groups: list[list[Segment]], norms: frozenset[int]) -> list[list[Segment]]:
    """A norm between the last residual block of a stage and a head or downsampling layer belongs to the latter.

    Unless the blocks are post-norm: then those followed by another residual block end in a norm too. Where there is
    none to compare with, the norm is the follower's if the branch has a norm of its own already. Where nothing follows
    (an encoder that ends in its norm), the norm is a last block of its own.
    """
    residual = {i for i, group in enumerate(groups) if any(segment.sum for segment in group)}
    inner = [groups[i] for i in residual if i + 1 in residual]
    for i in sorted(residual, reverse=True):
        tail = [at for at, segment in enumerate(groups[i]) if segment.exit in norms and not segment.weights]
        is_post = all(_ends_in_norm(group, norms) for group in inner) if inner else not _has_pre(groups[i])
        if tail and not is_post and i + 1 not in residual:
            behind = groups[i + 1] if i + 1 < len(groups) else []
            groups[i : i + 2] = [groups[i][: tail[0]], groups[i][tail[0] :] + behind]
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
    found = next((segment.sum for segment in group if segment.sum is not None), None)
    told = _predicting_op(trace, exit_value)
    return DepthBlock(
        name=name,
        stream=stream,
        forward_ms=None if exit_value.forward is None else exit_value.forward.ms,
        backward_ms=None if exit_value.backward is None else exit_value.backward.ms,
        elements=1 if exit_value.shape == () else _product(exit_value.shape),
        exit=exit_value.id,
        weights=sum(is_weighted(op) for op in ops),
        norms=sum(op.index in norms for op in ops),
        bypassed=any(segment.bypassed for segment in group),
        residual=None if found is None else _residual(trace, found, _ends_in_norm(group, norms)),
        params=tuple(dict.fromkeys(name for op in ops for name in op.params)),
        modules=tuple(dict.fromkeys(op.module for op in ops)),
        forward_ms_predicted=None if told is None else told.forward_ms_predicted,
        backward_ms_predicted=None if told is None else told.backward_ms_predicted,
        band=None if told is None else told.band,
    )


def _predicting_op(trace: Trace, value: Value) -> Op | None:
    """The op at which theory's word on this value is noted: it wrote it, as its first floating output."""
    op = None if value.op is None else trace.ops[value.op]
    first = None if op is None else next((each for each in op.outputs if trace.values[each].floating), None)
    return op if first == value.id else None


def _product(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _exit(trace: Trace, group: Sequence[Segment]) -> int:
    """Value at which the block is measured: the last on its axis that has both statistics, else the last with one."""
    values = [trace.values[trace.ops[segment.exit].outputs[0]] for segment in reversed(group)]
    both = (value.id for value in values if value.forward is not None and value.backward is not None)
    one = (value.id for value in values if value.forward is not None)
    return next(both, next(one, values[0].id))


def _residual(trace: Trace, found: Sum, norm_after: bool) -> ResidualAdd:
    return ResidualAdd(
        placement=_PLACEMENTS[found.norm_before, norm_after, found.norm_inside],
        projected=found.projected,
        skip_ms=_times(_ms(trace, found.skip), found.skip_factor**2),
        branch_ms=_times(_ms(trace, found.branch), found.branch_factor**2),
        add=trace.ops[found.add].outputs[0],
        skip_scale=None
        if found.projected
        else _times(_scaled_by(trace, found.skip, found.start), abs(found.skip_factor)),
        branch_scale=_times(_scaled_by(trace, found.branch, found.start), abs(found.branch_factor)),
        branch_mean_share=_mean_share(trace, found.branch),
    )


def _ms(trace: Trace, value: int) -> float | None:
    stats = trace.values[value].forward
    return None if stats is None else stats.ms


def _times(number: float | None, factor: float) -> float | None:
    return None if number is None else number * factor


def _scaled_by(trace: Trace, value: int, start: int) -> float | None:
    """What a term of a residual add is multiplied by behind the op that made it; measured, so also where learned."""
    scale = 1.0
    while (
        (maker := trace.values[value].op) is not None and maker != start and trace.ops[maker].kind in NEUTRAL
    ):
        op = trace.ops[maker]
        before = next((each for each in op.inputs if _ms(trace, each) is not None), None)
        if before is None:
            return None
        if op.kind == "scale":
            old, new = _ms(trace, before), _ms(trace, value)
            if not old or new is None:
                return None
            scale *= math.sqrt(new / old)
        value = before
    return scale


def _mean_share(trace: Trace, value: int) -> float | None:
    stats = trace.values[value].forward
    return None if stats is None or not stats.ms > 0 else min(stats.mean**2 / stats.ms, 1.0)


_PLACEMENTS: dict[
    tuple[bool, bool, bool], Placement
] = {  # before the branch, after the add, at the branch's output
    (False, False, False): "none",
    (True, False, False): "pre",
    (False, True, False): "post",
    (False, False, True): "output",
    (True, False, True): "sandwich",
    (True, True, False): "pre+post",
    (False, True, True): "post+output",
    (True, True, True): "all",
}


def _gaps(trace: Trace, unplaced: Sequence[str], streams: Sequence[Stream]) -> tuple[Gap, ...]:
    gaps = []
    if streams and unplaced:
        why = "no chain of weight layers starts from them (masks, labels, positions)"
        gaps.append(Gap(what="batch inputs that are not a depth axis", why=why, where=tuple(unplaced)))
    if not streams:
        why = "no path of weight layers leads from a batch input to the loss"
        gaps.append(Gap(what="the depth axis", why=why, where=tuple(unplaced)))
    return tuple(gaps)
