"""The first NaN or infinity of a pass: the op that makes it, the line that calls the op, and why it does."""

from __future__ import annotations

import math
from collections.abc import Sequence

from leadline.records import Anomaly, Direction, GradientStats, NonFiniteCause, Op, Stats, Trace, Value

LOGARITHMS = frozenset({"log", "log2", "log10", "log1p"})
# By op that is undefined or infinite at zero, the position of the input that must not be zero.
_POLES = {**dict.fromkeys(LOGARITHMS, 0), "rsqrt": 0, "reciprocal": 0, "div": 1, "true_divide": 1, "pow": 0}
# Ops whose derivative is infinite at zero.
_SLOPE_POLES = frozenset({*_POLES, "sqrt", "norm", "vector_norm", "linalg_norm", "linalg_vector_norm"})
_NEGATIVE = frozenset({*LOGARITHMS, "sqrt", "rsqrt", "pow"})
_BOUNDED = frozenset({"acos", "asin", "arccos", "arcsin", "acosh", "atanh", "logit", "erfinv"})
_SOFTMAXES = frozenset({"softmax", "log_softmax", "scaled_dot_product_attention", "logsumexp"})
_LABEL_LOSSES = frozenset({"cross_entropy", "nll_loss", "nll_loss2d", "nll_loss_nd"})
_AVERAGES = frozenset({"mean", "nanmean", "std", "var"})
_PASSING = frozenset({"layout", "cast"})


def find_anomalies(trace: Trace) -> tuple[Anomaly, ...]:
    """The first NaN or infinity in each direction, if it reaches the loss or a gradient."""
    anomalies = (_forward_anomaly(trace), _backward_anomaly(trace))
    return tuple(each for each in anomalies if each is not None)


def find_anomaly_before(trace: Trace, values: Sequence[int]) -> Anomaly | None:
    """The first NaN or infinity among everything that `values` were computed from, in a pass that was not finished."""
    behind = _ancestors(trace, values)
    first = min((each for each in behind if _passes_on(each)), key=_written_at, default=None)
    if first is None:  # only -infinity: not a mask if a logarithm or another pole made it
        poles = [each for each in behind if _is_masked(each) and each.op is not None]
        poles = [each for each in poles if each.op is not None and trace.ops[each.op].name in _POLES]
        first = min(poles, key=_written_at, default=None)
    return None if first is None else _anomaly_at(trace, first)


def _ancestors(trace: Trace, values: Sequence[int]) -> list[Value]:
    """The values, and all that they were computed from."""
    pending, reached = list(values), set[int]()
    while pending:
        value = pending.pop()
        if value not in reached:
            reached.add(value)
            writer = trace.values[value].op
            pending += () if writer is None else trace.ops[writer].inputs
    return [trace.values[each] for each in sorted(reached)]


def _written_at(value: Value) -> int:
    return -1 if value.op is None else value.op


def _forward_anomaly(trace: Trace) -> Anomaly | None:
    """Walk back from the loss through non-finite values to the op that produced the first of them."""
    value = None if trace.loss_value is None else trace.values[trace.loss_value]
    if value is None or not _is_non_finite(value.forward):
        return None
    while value.op is not None:
        inputs = (trace.values[each] for each in trace.ops[value.op].inputs)
        non_finite = [each for each in inputs if _passes_on(each)]
        if not non_finite:
            break
        value = non_finite[0]
    return _anomaly_at(trace, value)


def _anomaly_at(trace: Trace, value: Value) -> Anomaly:
    """The anomaly of a value whose op read no NaN; if it read the infinity of a pole, that of the pole."""
    op = None if value.op is None else trace.ops[value.op]
    origin = None if op is None else _pole_before(trace, op)
    if op is not None and origin is not None:
        return _anomaly(trace, "forward", trace.values[origin.outputs[0]], origin, after=op)
    return _anomaly(trace, "forward", value, op)


def _backward_anomaly(trace: Trace) -> Anomaly | None:
    """The last value with a non-finite gradient came first, because gradients run backward; its reader caused it."""
    non_finite = [value for value in trace.values if _is_non_finite(value.backward)]
    if not non_finite:
        return None
    value = max(non_finite, key=lambda each: -1 if each.op is None else each.op)
    readers = [op for op in trace.ops if value.id in op.inputs]
    finite_before = [
        op for op in readers if not any(_is_non_finite(trace.values[out].backward) for out in op.outputs)
    ]
    causes = finite_before or readers
    op = causes[-1] if causes else None
    origin = None if op is None else _pole_before(trace, op)
    if origin is not None:
        return _anomaly(trace, "backward", value, origin, after=op)
    return _anomaly(trace, "backward", value, op)


def _pole_before(trace: Trace, op: Op) -> Op | None:
    """The logarithm of zero, or another pole, behind an input of -infinity; None if a mask wrote it."""
    infinite = [trace.values[each] for each in op.inputs if _is_masked(trace.values[each])]
    for value in infinite:
        while value.op is not None:
            producer = trace.ops[value.op]
            before = [trace.values[each] for each in producer.inputs if _is_masked(trace.values[each])]
            if not before:
                if producer.name in _POLES:
                    return producer
                break
            value = before[0]
    return None


def _anomaly(
    trace: Trace, direction: Direction, value: Value, op: Op | None, after: Op | None = None
) -> Anomaly:
    stats = value.forward if direction == "forward" else value.backward
    operand = None if op is None else _operand(trace, op)
    producer = None if operand is None else _producer(trace, operand)
    return Anomaly(
        direction=direction,
        op="" if op is None else op.name,
        module="" if op is None else op.module,
        value=value.id,
        non_finite=0 if stats is None else stats.non_finite,
        count=0 if stats is None else stats.count,
        source=_source(trace, value, op) if direction == "forward" else "",
        place=None if op is None else op.source,
        cause="overflow" if op is None else _cause(trace, op, direction),
        after="" if after is None else after.name,
        operand="" if producer is None else producer.name,
        entropy=op is not None
        and after is not None
        and operand is not None
        and _is_factor(trace, after, operand),
        learned=operand is not None and operand.backward is not None,
    )


def _cause(trace: Trace, op: Op, direction: Direction) -> NonFiniteCause:
    """Why the op makes NaN or infinity of finite inputs; "overflow" where nothing else can."""
    inputs = [trace.values[each] for each in op.inputs]
    operand = _operand(trace, op)
    zeros = operand is not None and operand.forward is not None and operand.forward.zero_share > 0
    if op.name in (_POLES if direction == "forward" else _SLOPE_POLES) and zeros:
        return "zero"
    if direction == "backward":
        return "overflow"
    if op.name in _LABEL_LOSSES:
        return _label_cause(inputs)
    if op.name in _AVERAGES and inputs and not math.prod(inputs[0].shape):
        return "empty"
    if op.name in _SOFTMAXES:
        return "masked"
    if op.name in _BOUNDED:
        return "domain"
    output = trace.values[op.outputs[0]].forward if op.outputs else None
    if op.name in _NEGATIVE and output is not None and math.isnan(output.mean):
        return "negative"
    return "overflow"


def _label_cause(inputs: Sequence[Value]) -> NonFiniteCause:
    """A mean over labels is 0/0 only if no label counts: each is ignored, or its class has a weight of 0."""
    if inputs and not math.prod(inputs[0].shape):
        return "empty"
    weights = [each.forward for each in inputs[2:] if each.floating and each.forward is not None]
    return "unweighted" if any(each.zero_share > 0 for each in weights) else "ignored"


def _operand(trace: Trace, op: Op) -> Value | None:
    """The input whose value matters: the divisor of a division, otherwise the first one."""
    place = _POLES.get(op.name, 0)
    return trace.values[op.inputs[place]] if place < len(op.inputs) else None


def _producer(trace: Trace, value: Value) -> Op | None:
    """The op that computed a value, before ops that only rearrange it."""
    return None if (own := _unwrapped(trace, value)).op is None else trace.ops[own.op]


def _unwrapped(trace: Trace, value: Value) -> Value:
    while value.op is not None and trace.ops[value.op].kind in _PASSING and trace.ops[value.op].inputs:
        value = trace.values[trace.ops[value.op].inputs[0]]
    return value


def _is_factor(trace: Trace, product: Op, operand: Value) -> bool:
    """Whether the operand of a logarithm is also a factor of the product that reads the logarithm."""
    own = _unwrapped(trace, operand).id
    return product.name == "mul" and any(
        _unwrapped(trace, trace.values[each]).id == own for each in product.inputs
    )


def _source(trace: Trace, value: Value, op: Op | None) -> str:
    """The batch input or parameter that was already non-finite; "" if the op computed it from finite numbers."""
    if op is None:
        return value.name
    non_finite = {
        each.name for each in trace.parameters if each.ms is not None and not math.isfinite(each.ms)
    }
    return next((name for name in op.params if name in non_finite), "")


def _is_non_finite(stats: Stats | GradientStats | None) -> bool:
    return stats is not None and stats.non_finite > 0


def _is_masked(value: Value) -> bool:
    """Whether -infinity is the only non-finite number in it, as in attention masks and logarithms of zero."""
    return value.forward is not None and value.forward.non_finite > 0 and value.forward.mean == -math.inf


def _passes_on(value: Value) -> bool:
    """Whether the value is non-finite and not only masked: attention masks consist of -inf alone."""
    return _is_non_finite(value.forward) and not _is_masked(value)
