"""The forward pass of theory: every op's rule applied in order, from weights and inputs to the loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from leadline.readings.theory.field import RandomField, independent
from leadline.readings.theory.moment_rule import Call, MomentMap, SignalFacts, UnpredictableError
from leadline.readings.theory.moments import find_moment_rule
from leadline.readings.theory.signal import Signal, Sources
from leadline.records import Op, Stats, Trace, Value

_CHANNELS_FIRST = ("conv", "batch_norm", "group_norm", "instance_norm")
_REFUSALS = (UnpredictableError, ArithmeticError, LookupError, TypeError, ValueError, RuntimeError)


@dataclass(slots=True)
class Forward:
    """What theory says of every value, how each op passes gradients back, and where it had no rule."""

    signals: dict[int, Signal] = field(default_factory=dict)
    transfers: dict[int, MomentMap] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)
    """By op: why there is no prediction for an op that carries a signal."""
    anchors: list[int] = field(default_factory=list)
    """Ops after which prediction goes on from the measured value."""
    predicted: dict[int, RandomField] = field(default_factory=dict)
    """By value: what the rule said, before it was replaced by what was measured (if it was)."""


def predict_forward(trace: Trace, facts: SignalFacts, *, from_measured: bool = False) -> Forward:
    """Propagate moments through all ops.

    With `from_measured` every op reads what was measured instead of what was predicted, so that each prediction is
    that of its own rule alone, without the errors of those before it.
    """
    state = Forward()
    sources = Sources()
    weights = {parameter.name: parameter for parameter in trace.parameters}
    for value in trace.values:
        if value.op is None and (signal := _given(value, weights, sources)) is not None:
            state.signals[value.id] = signal
    for op in trace.ops:
        _apply(trace, facts, op, state, sources)
        if from_measured:
            _anchor_all(trace, op, state)
    return state


def _given(value: Value, weights: Mapping[str, object], sources: Sources) -> Signal | None:
    """A tensor that no op made: a parameter by its two moments, all else by its measured ones."""
    if value.source == "parameter":
        found = weights.get(value.name)
        mean, ms = getattr(found, "mean", None), getattr(found, "ms", None)
        return None if mean is None or ms is None else _drawn(value, float(mean), float(ms), sources)
    stats = value.forward
    if stats is None or not math.isfinite(stats.ms) or not math.isfinite(stats.mean):
        return None
    return _drawn(value, stats.mean, stats.ms, sources)


def _drawn(value: Value, mean: float, ms: float, sources: Sources) -> Signal:
    return sources.gaussian(independent(value.shape, mean, max(ms, mean * mean)))


def _apply(trace: Trace, facts: SignalFacts, op: Op, state: Forward, sources: Sources) -> None:
    written = [trace.values[value] for value in op.outputs]
    if not any(value.floating for value in written):
        return
    if not any(value.id in facts.live for value in written) and _constants(written, state, sources):
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
            facts=facts.ignored,
            causal=facts.causal,
        )
        transfer = _checked(rule.apply(call), written)
        _keep(trace, facts, op, transfer, state)
    except _REFUSALS as refusal:
        known = isinstance(refusal, UnpredictableError)
        state.refusals[op.index] = (
            str(refusal) if known else f"unexpected: {type(refusal).__name__}: {refusal}"
        )
        _anchor(written, op, state, sources)


def _constants(written: list[Value], state: Forward, sources: Sources) -> bool:
    """Values that depend on neither batch nor parameters are facts, where they were measured."""
    found = [_given(value, {}, sources) for value in written if value.floating]
    for value, signal in zip((each for each in written if each.floating), found, strict=True):
        if signal is not None:
            state.signals[value.id] = signal
    return all(signal is not None for signal in found)


def _checked(transfer: MomentMap, written: list[Value]) -> MomentMap:
    """Rules speak of the tensors that were written: as many, in their shapes, and with numbers."""
    for signal, value in zip(transfer.outputs, written, strict=False):
        if signal is not None and signal.field.shape != value.shape:
            raise UnpredictableError(f"the rule gives shape {signal.field.shape}, the op gave {value.shape}")
        if signal is not None and not (math.isfinite(signal.field.ms) and math.isfinite(signal.field.mean)):
            raise UnpredictableError("the prediction is no number")
    return transfer


def _keep(trace: Trace, facts: SignalFacts, op: Op, transfer: MomentMap, state: Forward) -> None:
    state.transfers[op.index] = transfer
    for value, signal in zip(op.outputs, transfer.outputs, strict=False):
        if signal is None:
            continue
        own = _told_by_data(trace, op, value, signal, facts.live)
        state.signals[value] = own
        state.predicted[value] = own.field


def _told_by_data(trace: Trace, op: Op, number: int, signal: Signal, live: frozenset[int]) -> Signal:
    """How alike the samples of a batch are is a fact of the batch, read off the first weights that see it."""
    value = trace.values[number]
    if value.common_ms is None or value.forward is None or not value.forward.ms:
        return signal
    first = op.kind == "weight" and all(_made_of(trace, each) != "signal" for each in op.inputs)
    if not first and not (op.name == "add" and any(_is_table(trace, each, live) for each in op.inputs)):
        return signal
    return replace(signal, field=_shared(signal.field, value, _unit_axis(op, value)))


def _is_table(trace: Trace, value: int, live: frozenset[int]) -> bool:
    """A constant with rows: a table of positions, whose likeness is a fact as that of the batch is."""
    record = trace.values[value]
    return record.floating and value not in live and len([size for size in record.shape if size > 1]) > 1


def _made_of(trace: Trace, value: int) -> str:
    """ "signal" if a floating op other than a layout one made it, else what it comes from."""
    record = trace.values[value]
    while record.op is not None:
        op = trace.ops[record.op]
        if op.kind not in ("layout", "cast") or not op.inputs:
            return "signal"
        record = trace.values[op.inputs[0]]
    return str(record.source)


def _unit_axis(op: Op, value: Value) -> int:
    if len(value.shape) > 2 and any(word in op.name for word in _CHANNELS_FIRST):
        return 1
    return len(value.shape) - 1


def _shared(field: RandomField, value: Value, unit: int) -> RandomField:
    """The field with the measured likeness of samples and positions: $c = (q + (P - 1) s)/P$ over $P$ of them."""
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
    """Go on from what was measured, where the op has no rule."""
    for value in written:
        stats = value.forward
        if not value.floating or stats is None or not math.isfinite(stats.ms):
            continue
        drawn = _drawn(value, stats.mean, stats.ms, sources)
        state.signals[value.id] = replace(drawn, field=_shared(drawn.field, value, _unit_axis(op, value)))
        if value.id == op.outputs[0]:
            state.anchors.append(op.index)


def _anchor_all(trace: Trace, op: Op, state: Forward) -> None:
    for value in op.outputs:
        stats, signal = trace.values[value].forward, state.signals.get(value)
        if signal is not None and stats is not None:
            state.signals[value] = fitted_to(signal, stats)


def fitted_to(signal: Signal, stats: Stats) -> Signal:
    """The signal moved and stretched so that it has the measured mean and second moment; correlations stay."""
    old = signal.field
    if not (math.isfinite(stats.ms) and math.isfinite(stats.mean)) or signal.valid is not None:
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
    )
    nodes = None if signal.nodes is None else (signal.nodes - old.mean) * stretch + stats.mean
    return replace(signal, field=field, slope=signal.slope * stretch, nodes=nodes, noise=0.0)
