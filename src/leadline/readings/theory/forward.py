"""The forward pass of theory: applies the rule of every op in order, from weights and inputs to the loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from leadline.ops.table import LAYOUT_KINDS
from leadline.readings.theory.field import RandomField, independent
from leadline.readings.theory.moment_rule import Call, MomentMap, SignalFacts, UnpredictableError
from leadline.readings.theory.moments import find_moment_rule
from leadline.readings.theory.position_profile import PositionProfile
from leadline.readings.theory.rotation import ROTATIONS, rotation_profile
from leadline.readings.theory.signal import Signal, Sources
from leadline.readings.theory.write import reads_uninitialized, write_through_view
from leadline.records import Op, Stats, Trace, Value

_CHANNELS_FIRST = ("conv", "batch_norm", "group_norm", "instance_norm")
_MOVING_KINDS = LAYOUT_KINDS | {"select", "join", "create"}
_REFUSALS = (UnpredictableError, ArithmeticError, LookupError, TypeError, ValueError, RuntimeError)


@dataclass(slots=True)
class Forward:
    """The signal of every value, how each op passes gradients back, and which ops had no rule."""

    signals: dict[int, Signal] = field(default_factory=dict)
    moment_maps: dict[int, MomentMap] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)
    """Why there is no prediction, by the index of an op that carries a signal."""
    anchors: list[int] = field(default_factory=list)
    """Ops after which prediction continues from the measured value."""
    predicted: dict[int, RandomField] = field(default_factory=dict)
    """The prediction of the rule by value id, before a measured value may have replaced it."""
    sources: Sources = field(default_factory=Sources)


def predict_forward(trace: Trace, facts: SignalFacts, *, from_measured: bool = False) -> Forward:
    """Propagate moments through all ops.

    With `from_measured` every op reads measured values instead of predicted ones, so that each prediction has the error
    of its own rule alone.
    """
    state = Forward()
    sources = state.sources
    weights = {parameter.name: parameter for parameter in trace.parameters}
    for value in trace.values:
        signal = None if value.op is not None else _source_signal(value, weights, sources)
        if signal is not None:
            state.signals[value.id] = signal
    for op in trace.ops:
        _apply(trace, facts, op, state, sources)
        if from_measured:
            _anchor_all(trace, op, state)
    return state


def _source_signal(value: Value, weights: Mapping[str, object], sources: Sources) -> Signal | None:
    """The signal of a tensor that no op made: from the moments of a parameter, or from measured ones."""
    if value.source == "parameter":
        weight = weights.get(value.name)
        mean, ms = getattr(weight, "mean", None), getattr(weight, "ms", None)
        return (
            None
            if mean is None or ms is None
            else _independent_signal(value, float(mean), float(ms), sources)
        )
    stats = value.forward
    if stats is None or not math.isfinite(stats.ms) or not math.isfinite(stats.mean):
        return None
    return _independent_signal(value, stats.mean, stats.ms, sources)


def _independent_signal(value: Value, mean: float, ms: float, sources: Sources) -> Signal:
    return sources.gaussian(independent(value.shape, mean, max(ms, mean * mean)))


def _apply(trace: Trace, facts: SignalFacts, op: Op, state: Forward, sources: Sources) -> None:
    written = [trace.values[value] for value in op.outputs]
    if not any(value.floating for value in written):
        return
    is_constant = not any(value.id in facts.live for value in written)
    if is_constant and _set_constants(trace, op, written, state, sources):
        return
    rule = find_moment_rule(op.name)
    try:
        if rule is None:
            raise UnpredictableError("no rule")
        call = Call(
            op=op,
            trace=trace,
            signals=state.signals,
            sources=sources,
            ignored_shares=facts.ignored,
            causal=facts.causal,
        )
        _check_initialized(call)
        moment_map = _check_outputs(write_through_view(call, rule.apply(call)), written)
        _store(trace, facts, op, moment_map, state)
    except _REFUSALS as refusal:
        known = isinstance(refusal, UnpredictableError)
        state.refusals[op.index] = (
            str(refusal) if known else f"unexpected: {type(refusal).__name__}: {refusal}"
        )
        _anchor(written, op, state, sources)


def _set_constants(trace: Trace, op: Op, written: list[Value], state: Forward, sources: Sources) -> bool:
    """Set the measured signals of values that depend on neither batch nor parameters; True if all were measured."""
    floating = [value for value in written if value.floating]
    signals = [_source_signal(value, {}, sources) for value in floating]
    for value, signal in zip(floating, signals, strict=True):
        if signal is not None:
            profile = _table_profile(trace, op, state, sources) if value.id == op.outputs[0] else None
            state.signals[value.id] = replace(signal, field=replace(signal.field, profile=profile))
    return all(signal is not None for signal in signals)


def _table_profile(trace: Trace, op: Op, state: Forward, sources: Sources) -> PositionProfile | None:
    """The profile of a constant: of a table of rotations, or of a constant that was rearranged or scaled."""
    read = op.inputs[0] if op.inputs else None
    signal = None if read is None else state.signals.get(read)
    if read is None or signal is None:
        return None
    value = trace.values[op.outputs[0]]
    if op.name in ROTATIONS:
        return rotation_profile(op.name, trace.values[read], value)
    rule = find_moment_rule(op.name)
    if rule is None or signal.field.profile is None:
        return None
    try:
        out = rule.apply(Call(op=op, trace=trace, signals=state.signals, sources=sources)).outputs[0]
    except _REFUSALS:
        return None
    return None if out is None or out.field.shape != value.shape else out.field.profile


def _check_initialized(call: Call) -> None:
    """Raise if the op computes with memory that nothing has written yet; moving it and writing into it is fine."""
    if call.op.kind in _MOVING_KINDS:
        return
    for value in call.op.inputs:
        signal = call.signals.get(value)
        if signal is not None and reads_uninitialized(signal):
            raise UnpredictableError("memory that nothing has written")


def _check_outputs(moment_map: MomentMap, written: list[Value]) -> MomentMap:
    """The moment map, if its outputs have the shapes that the op wrote and finite moments."""
    for signal, value in zip(moment_map.outputs, written, strict=False):
        if signal is not None and signal.field.shape != value.shape:
            raise UnpredictableError(f"the rule gives shape {signal.field.shape}, the op gave {value.shape}")
        if signal is not None and not (math.isfinite(signal.field.ms) and math.isfinite(signal.field.mean)):
            raise UnpredictableError("the prediction is not finite")
    return moment_map


def _store(trace: Trace, facts: SignalFacts, op: Op, moment_map: MomentMap, state: Forward) -> None:
    state.moment_maps[op.index] = moment_map
    for value, signal in zip(op.outputs, moment_map.outputs, strict=False):
        if signal is None:
            continue
        signal = _with_batch_shares(trace, op, value, signal, facts.live)
        state.predicted[value] = signal.field
        state.signals[value] = _with_rows_of_batch(trace, op, value, signal)


def _with_rows_of_batch(trace: Trace, op: Op, number: int, signal: Signal) -> Signal:
    """The signal with the measured moments of an embedding: which rows it reads is a fact of the batch.

    They matter for tables of which few rows are read, such as those of positions and of token types.
    """
    stats = trace.values[number].forward
    return signal if op.kind != "embedding" or stats is None else match_measured(signal, stats)


def _with_batch_shares(trace: Trace, op: Op, number: int, signal: Signal, live: frozenset[int]) -> Signal:
    """The signal with the measured likeness of samples: a fact of the batch, read where it meets the first weight."""
    value = trace.values[number]
    if value.common_ms is None or value.forward is None or not value.forward.ms:
        return signal
    first = op.kind == "weight" and all(_origin(trace, each) != "signal" for each in op.inputs)
    if not first and not (op.name == "add" and any(_is_table(trace, each, live) for each in op.inputs)):
        return signal
    return replace(signal, field=_shared(signal.field, value, _unit_axis(op, value)))


def _is_table(trace: Trace, value: int, live: frozenset[int]) -> bool:
    """Whether a value is a constant with rows, such as a table of positions, whose likeness is measured too."""
    record = trace.values[value]
    return record.floating and value not in live and len([size for size in record.shape if size > 1]) > 1


def _origin(trace: Trace, value: int) -> str:
    """The source of a value that only layout ops changed; "signal" for all others."""
    record = trace.values[value]
    while record.op is not None:
        op = trace.ops[record.op]
        if op.kind not in LAYOUT_KINDS or not op.inputs:
            return "signal"
        record = trace.values[op.inputs[0]]
    return str(record.source)


def _unit_axis(op: Op, value: Value) -> int:
    if len(value.shape) > 2 and any(word in op.name for word in _CHANNELS_FIRST):
        return 1
    return len(value.shape) - 1


def _shared(field: RandomField, value: Value, unit: int) -> RandomField:
    """The field with the measured shares of samples and positions: $c = (q + (P - 1) s)/P$ over $P$ of them."""
    if value.common_ms is None or value.forward is None or not value.forward.ms or not value.shape:
        return field
    count = value.forward.count // max(field.shape[unit], 1)
    if count < 2:
        return field
    part = min(max((count * value.common_ms / value.forward.ms - 1) / (count - 1), 0.0), 1.0)
    share = tuple(
        field.ms if size == 1 else old if axis == unit else max(part * field.ms, field.mean**2)
        for axis, (size, old) in enumerate(zip(field.shape, field.share, strict=True))
    )
    return replace(field, share=share)


def _anchor(written: list[Value], op: Op, state: Forward, sources: Sources) -> None:
    """Continue from the measured value of an op without a rule."""
    for value in written:
        stats = value.forward
        if not value.floating or stats is None or not math.isfinite(stats.ms):
            continue
        signal = _independent_signal(value, stats.mean, stats.ms, sources)
        state.signals[value.id] = replace(signal, field=_shared(signal.field, value, _unit_axis(op, value)))
        if value.id == op.outputs[0]:
            state.anchors.append(op.index)


def _anchor_all(trace: Trace, op: Op, state: Forward) -> None:
    for value in op.outputs:
        stats, signal = trace.values[value].forward, state.signals.get(value)
        if signal is not None and stats is not None:
            state.signals[value] = match_measured(signal, stats)


def match_measured(signal: Signal, stats: Stats) -> Signal:
    """The signal shifted and scaled to the measured mean and second moment; correlations stay."""
    old = signal.field
    if not (math.isfinite(stats.ms) and math.isfinite(stats.mean)) or signal.visible_share is not None:
        return signal
    if old.var <= 0 or stats.var <= 0:
        return signal
    stretch = math.sqrt(stats.var / old.var)
    square = stats.mean**2
    field = RandomField(
        shape=old.shape,
        mean=stats.mean,
        ms=stats.ms,
        share=tuple(square + (each - old.mean**2) * stretch**2 for each in old.share),
        profile=old.profile,
    )
    nodes = None if signal.nodes is None else (signal.nodes - old.mean) * stretch + stats.mean
    return replace(signal, field=field, slope=signal.slope * stretch, nodes=nodes, noise=0.0)
