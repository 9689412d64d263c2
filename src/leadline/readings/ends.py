"""The two ends of a network: what comes in from the batch, and what the loss reads; and the dtype between them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from leadline.readings.graph import NEUTRAL
from leadline.readings.structure import Structure
from leadline.records import Head, InputSignal, Op, Precision, Stats, Trace, Value, Weight

LIMITS = {  # smallest number above zero (subnormal) and largest, of each dtype (IEEE 754; bfloat16: 8 exponent bits)
    "float16": (5.960464477539063e-08, 65504.0),
    "bfloat16": (9.183549615799121e-41, 3.3895313892515355e38),
    "float32": (1.401298464324817e-45, 3.4028234663852886e38),
    "float64": (5e-324, 1.7976931348623157e308),
}
_CROSS_ENTROPIES = ("cross_entropy", "cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d")
_PASSING = NEUTRAL | {"select", "join"}
STRETCHED = 10.0  # of numbers within ±s, cross-entropy can make ln(1 + (C - 1) exp(-2 s)): 2e-9 (C - 1) here (derived)
CARRIED = 1.01  # rounding: a sum of a mask's constant and a signal is that constant (ours)


def read_sources(trace: Trace, structure: Structure, weights: Sequence[Weight]) -> Iterator[InputSignal]:
    """The floating-point inputs that a stream starts from, behind what only shifts and scales them."""
    for index, flow in enumerate(structure.flows):
        stats = _standardised(trace, flow.source).forward
        if stats is None or not flow.source.floating or not stats.count:
            continue
        own = [w for w in weights if w.block >= 0 and structure.blocks[w.block].stream == index]
        first = own[0].block if own else 0
        ops = [op for segment in structure.segments[first] for op in segment.ops]
        yield InputSignal(
            name=flow.source.name,
            ms=stats.ms,
            normalised=bool(own and own[0].norm) or any(op in structure.norms for op in ops),
        )


def _standardised(trace: Trace, source: Value) -> Value:
    """The input after constants were subtracted and divided by, as a model does that standardises for itself."""
    value = source
    for op in trace.ops:
        if value.id in op.inputs:
            if op.kind not in ("scale", "bias", "cast") or len(op.inputs) != 1:
                return value
            value = trace.values[op.outputs[0]]
    return source


def read_head(trace: Trace) -> Head | None:
    """The last loss op of the pass and the logits it reads; None if no loss was computed."""
    if trace.loss is None:
        return None
    losses = [op for op in trace.ops if op.kind == "loss"]
    if not losses:
        return Head(loss="", value=trace.loss, classes=None, logit_ms=None, logit_max=None, behind="")
    op = losses[-1]
    logits = trace.values[op.inputs[0]]
    maker = _maker(trace, logits)
    if op.name.startswith("nll_loss") and maker is not None and maker.name == "log_softmax":
        logits = trace.values[maker.inputs[0]]
        maker = _maker(trace, logits)
    made = trace.values[op.outputs[0]].forward
    squashed = (
        maker is not None and maker.kind in ("softmax", "activation") and not _stretched(trace, maker, logits)
    )
    return Head(
        loss=op.name,
        value=trace.loss if made is None else made.mean,
        classes=_classes(op, logits),
        logit_ms=None if logits.forward is None else logits.forward.ms,
        logit_max=None if logits.forward is None else logits.forward.abs_max,
        behind=maker.name if maker is not None and squashed else "",
    )


def _stretched(trace: Trace, maker: Op, logits: Value) -> bool:
    """A bounded function's output, multiplied until it can serve as logits: a soft cap, 30 tanh(x / 30)."""
    made = trace.values[maker.outputs[0]].forward
    if maker.name.startswith("relu") or made is None or logits.forward is None or not made.abs_max > 0:
        return False
    return logits.forward.abs_max / made.abs_max >= STRETCHED


def _maker(trace: Trace, value: Value) -> Op | None:
    """The op that made this value, seen through ops that only pass it on."""
    while value.op is not None:
        op = trace.ops[value.op]
        if op.kind not in _PASSING or not op.inputs:
            return op
        value = trace.values[op.inputs[0]]
    return None


def _classes(op: Op, logits: Value) -> int | None:
    if op.name not in _CROSS_ENTROPIES or not logits.shape:
        return None
    return logits.shape[1] if len(logits.shape) > 1 else logits.shape[0]


def read_precision(trace: Trace) -> Precision | None:
    """How near the pass came to the limits of the dtype that most of it ran in."""
    written = [value for value in trace.values if value.op is not None and value.forward is not None]
    common = Counter(value.dtype for value in written).most_common(1)
    kept = Counter(p.dtype for p in trace.parameters if p.trainable).most_common(1)
    if not common or not kept or common[0][0] not in LIMITS:
        return None
    dtype = common[0][0]
    tiny, huge = LIMITS[dtype]
    own = [value for value in written if value.dtype == dtype]
    constant = _carried(trace)
    peak = max(own, key=lambda value: _backward_peak(value) if value.id in constant else _peak(value))
    lost = [
        (_lost(value, tiny), value) for value in own if value.backward is not None and value.backward.count
    ]
    worst = max(lost, key=lambda pair: pair[0], default=(0.0, peak))
    return Precision(
        dtype=dtype,
        parameters=kept[0][0],
        tiny=tiny,
        huge=huge,
        largest=_backward_peak(peak) if peak.id in constant else _peak(peak),
        largest_at=_where(trace, peak),
        lost=worst[0],
        lost_at=_where(trace, worst[1]),
    )


def _peak(value: Value) -> float:
    return max(_finite_max(value.forward), _finite_max(value.backward))


def _backward_peak(value: Value) -> float:
    return _finite_max(value.backward)


def _finite_max(stats: Stats | None) -> float:
    return stats.abs_max if stats is not None and math.isfinite(stats.abs_max) else 0.0


def _carried(trace: Trace) -> set[int]:
    """Values whose largest number was written down by somebody (a mask's -1e38) and not computed."""
    found = {value.id for value in trace.values if value.source in ("constant", "buffer")}
    for op in trace.ops:
        most = max(
            (_finite_max(trace.values[each].forward) for each in op.inputs if each in found), default=0.0
        )
        found.update(
            each
            for each in op.outputs
            if found.issuperset(op.inputs) or _finite_max(trace.values[each].forward) <= CARRIED * most
        )
    return found


def _lost(value: Value, tiny: float) -> float:
    """Share of a Gaussian gradient of this size that rounds to zero."""
    if value.backward is None or not value.backward.ms > 0 or not math.isfinite(value.backward.ms):
        return 0.0
    return math.erf(tiny / 2 / math.sqrt(2 * value.backward.ms))


def _where(trace: Trace, value: Value) -> str:
    return "" if value.op is None else trace.ops[value.op].module
