"""Facts about parts of the model other than the depth axis: inputs, loss head, dtype, attention, recurrence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

import msgspec
from msgspec.structs import replace

from leadline.ops.arguments import argument, dropout_rate
from leadline.ops.gaussian import activation_moments
from leadline.readings.graph import NEUTRAL
from leadline.readings.low_rank import read_low_rank_terms
from leadline.readings.structure import Segment, Structure
from leadline.readings.weights import OpPlaces, find_places, read_clones, read_weights
from leadline.records import (
    Attention,
    DepthBlock,
    GradientStats,
    Head,
    InputSignal,
    ModelFacts,
    Op,
    Parameter,
    Precision,
    Recurrence,
    Stats,
    Trace,
    Units,
    Value,
    Weight,
)

# Cited: IEEE 754 (bfloat16 has 8 exponent bits): smallest positive (subnormal) and largest number of each dtype.
DTYPE_LIMITS = {
    "float16": (5.960464477539063e-08, 65504.0),
    "bfloat16": (9.183549615799121e-41, 3.3895313892515355e38),
    "float32": (1.401298464324817e-45, 3.4028234663852886e38),
    "float64": (5e-324, 1.7976931348623157e308),
}
_CROSS_ENTROPIES = ("cross_entropy", "cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d")
SQUASHING_IN_LOSSES = frozenset(["sigmoid", "logsigmoid", "softmax", "log_softmax"])
"""Ops by which a handwritten loss makes probabilities of scores; a distribution of classes does it by `logsumexp`."""
_PASSING = NEUTRAL | {"select", "join"}
# Derived: from logits within ±s cross-entropy can reach ln(1 + (C - 1) exp(-2 s)), here 2e-9 (C - 1).
MIN_LOGIT_STRETCH = 10.0
# Heuristic: allows for rounding when a signal is added to the large constant of a mask.
MAX_MASK_ROUNDING = 1.01


def read_sources(trace: Trace, structure: Structure, weights: Sequence[Weight]) -> Iterator[InputSignal]:
    """The floating-point inputs of the streams, after the ops that only shift and scale them."""
    for index, flow in enumerate(structure.flows):
        stats = _standardized(trace, flow.source).forward
        if stats is None or not flow.source.floating or not stats.count:
            continue
        own = [w for w in weights if w.block >= 0 and structure.blocks[w.block].stream == index]
        first = own[0].block if own else 0
        ops = [op for segment in structure.segments[first] for op in segment.ops]
        yield InputSignal(
            name=flow.source.name,
            ms=stats.ms,
            elements=stats.count,
            normalized=bool(own and own[0].norm) or any(op in structure.norms for op in ops),
        )


def _standardized(trace: Trace, source: Value) -> Value:
    """The input after the model subtracted and divided by constants (standardized it)."""
    value = source
    for op in trace.ops:
        if value.id in op.inputs:
            if op.kind not in ("scale", "bias", "cast") or len(op.inputs) != 1:
                return value
            value = trace.values[op.outputs[0]]
    return source


def read_head(trace: Trace) -> Head | None:
    """The last loss op of the pass and the logits it reads, measured or predicted; None if the loss is not known."""
    losses = [op for op in trace.ops if op.kind == "loss"]
    if trace.loss is None:
        return _predicted_head(trace, losses[-1]) if losses else None
    if not losses:
        return _handwritten_head(trace, trace.loss)
    op = losses[-1]
    logits = trace.values[op.inputs[0]]
    producer = _producer(trace, logits)
    if op.name.startswith("nll_loss") and producer is not None and producer.name == "log_softmax":
        logits = trace.values[producer.inputs[0]]
        producer = _producer(trace, logits)
    loss_stats = trace.values[op.outputs[0]].forward
    is_squashed = (
        producer is not None
        and producer.kind in ("softmax", "activation")
        and not _is_stretched(trace, producer, logits)
    )
    return Head(
        loss=op.name,
        value=trace.loss if loss_stats is None else loss_stats.mean,
        classes=_classes(op, logits),
        logit_ms=None if logits.forward is None else logits.forward.ms,
        logit_max=None if logits.forward is None else logits.forward.abs_max,
        behind=producer.name if producer is not None and is_squashed else "",
        place=producer.source if producer is not None and is_squashed else None,
        summed_targets=_summed_targets(trace.values[op.outputs[0]]),
    )


def _handwritten_head(trace: Trace, loss: float) -> Head:
    """The head of a loss without loss ops: what it squashes by itself after the model has squashed it."""
    plain = Head(loss="", value=loss, classes=None, logit_ms=None, logit_max=None, behind="")
    for op in trace.ops:
        is_squashing = op.phase == "loss" and op.name in SQUASHING_IN_LOSSES
        if not op.inputs or not (is_squashing or op.name == "logsumexp"):
            continue
        scores = trace.values[op.inputs[0]]
        producer = _producer(trace, scores)
        if producer is None or producer.phase != "forward" or producer.kind not in ("softmax", "activation"):
            continue
        if not _is_stretched(trace, producer, scores):
            return replace(plain, behind=producer.name, place=producer.source, squashed_by=op.name)
    return plain


def _predicted_head(trace: Trace, op: Op) -> Head | None:
    """The loss and the logits that theory predicts for a model without weights, for a loss that is a mean."""
    if op.forward_ms_predicted is None or op.kwargs.get("reduction", "mean") != "mean":
        return None
    logits = trace.values[op.inputs[0]]
    producer = None if logits.op is None else trace.ops[logits.op]
    return Head(
        loss=op.name,
        value=math.sqrt(op.forward_ms_predicted),
        classes=_classes(op, logits),
        logit_ms=None if producer is None else producer.forward_ms_predicted,
        logit_max=None,
        behind="",
    )


def _summed_targets(value: Value) -> float:
    """The number of targets in the mean of a loss value; 1 if that value was a mean, or nothing was counted."""
    results = math.prod(value.shape)
    return value.summed_targets / results if value.summed_targets and results else 1.0


def _is_stretched(trace: Trace, producer: Op, logits: Value) -> bool:
    """Whether a bounded output is multiplied until it can serve as logits, as in the soft cap 30 tanh(x / 30)."""
    bounded = trace.values[producer.outputs[0]].forward
    if (
        producer.name.startswith("relu")
        or bounded is None
        or logits.forward is None
        or not bounded.abs_max > 0
    ):
        return False
    return logits.forward.abs_max / bounded.abs_max >= MIN_LOGIT_STRETCH


def _producer(trace: Trace, value: Value) -> Op | None:
    """The op that produced this value, before ops that only pass it on."""
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
    """How close the pass came to the limits of its most frequent dtype."""
    written = [value for value in trace.values if value.op is not None and value.forward is not None]
    value_dtypes = Counter(value.dtype for value in written).most_common(1)
    parameter_dtypes = Counter(p.dtype for p in trace.parameters if p.trainable).most_common(1)
    if not value_dtypes or not parameter_dtypes or value_dtypes[0][0] not in DTYPE_LIMITS:
        return None
    dtype = value_dtypes[0][0]
    tiny, huge = DTYPE_LIMITS[dtype]
    own = [value for value in written if value.dtype == dtype]
    constant = _mask_values(trace)
    peak = max(own, key=lambda value: _finite_max(value.backward) if value.id in constant else _peak(value))
    lost = [
        (_lost(value, tiny), value) for value in own if value.backward is not None and value.backward.count
    ]
    worst = max(lost, key=lambda pair: pair[0], default=(0.0, peak))
    return Precision(
        dtype=dtype,
        parameters=parameter_dtypes[0][0],
        tiny=tiny,
        huge=huge,
        largest=_finite_max(peak.backward) if peak.id in constant else _peak(peak),
        largest_at=_where(trace, peak),
        lost=worst[0],
        lost_at=_where(trace, worst[1]),
    )


def _peak(value: Value) -> float:
    return max(_finite_max(value.forward), _finite_max(value.backward))


def _finite_max(stats: Stats | GradientStats | None) -> float:
    """The largest magnitude; 0 where it was not measured, which is far from the limits of the dtype."""
    peak = None if stats is None else stats.abs_max
    return peak if peak is not None and math.isfinite(peak) else 0.0


def _mask_values(trace: Trace) -> set[int]:
    """Values whose largest number is a written constant (a mask's -1e38) and not computed."""
    constants = {value.id for value in trace.values if value.source in ("constant", "buffer")}
    for op in trace.ops:
        largest = max(
            (_finite_max(trace.values[each].forward) for each in op.inputs if each in constants), default=0.0
        )
        constants.update(
            each
            for each in op.outputs
            if constants.issuperset(op.inputs)
            or _finite_max(trace.values[each].forward) <= MAX_MASK_ROUNDING * largest
        )
    return constants


def _lost(value: Value, tiny: float) -> float:
    """Share of a Gaussian gradient with the measured second moment that rounds to zero."""
    if value.backward is None or not value.backward.ms > 0 or not math.isfinite(value.backward.ms):
        return 0.0
    return math.erf(tiny / 2 / math.sqrt(2 * value.backward.ms))


def _where(trace: Trace, value: Value) -> str:
    return "" if value.op is None else trace.ops[value.op].module


# Attention and recurrence: how queries spread over keys, and the factor of a state from step to step.

# Derived: 30 halvings of the log interval of the variance before a tanh leave 1e-9 of it.
BISECTION_STEPS = 30


def read_attentions(trace: Trace, places: OpPlaces) -> Iterator[Attention]:
    """Fused attention from its probe; attention written as a softmax from the second moment of the softmax."""
    for op in trace.ops:
        value = trace.values[op.outputs[0]]
        block = places.block.get(op.index, -1)
        if op.kind == "attention" and value.attended is not None:
            probe = value.attended
            yield Attention(
                block=block,
                module=op.module,
                keys=probe.keys,
                purity=probe.purity,
                uniform=1 / probe.keys,
                logit_var=probe.logit_var,
                logit_max=probe.logit_max,
                head_logits=_per_head(trace, places, op, probe.slice_logits, max),
                head_purities=_per_head(trace, places, op, probe.slice_purities, fmean),
            )
        elif op.name == "softmax" and _is_over_keys(op, value) and _weighs_values(trace, places, value.id):
            yield from _softmax_attention(trace, places, op, block)


def _is_over_keys(op: Op, weights: Value) -> bool:
    """Whether a softmax runs over the last axis; one over another axis, such as earlier layers, has no keys there."""
    return argument(op, "dim", 1) in (-1, len(weights.shape) - 1)


def _weighs_values(trace: Trace, places: OpPlaces, weights: int) -> bool:
    """Whether a product or a dropout reads the softmax, directly or after a cast or a change of layout.

    A product with a table that the model holds, such as one of permutations, is no attention.
    """
    for reader in places.readers.get(weights, ()):
        others = [trace.values[each] for each in reader.inputs if each != weights]
        if reader.kind == "dropout":
            return True
        if reader.kind == "product" and any(each.source not in ("buffer", "constant") for each in others):
            return True
        if reader.kind in ("cast", "layout") and _weighs_values(trace, places, reader.outputs[0]):
            return True
    return False


def _softmax_attention(trace: Trace, places: OpPlaces, op: Op, block: int) -> Iterator[Attention]:
    """Attention from a softmax over the last dimension whose output is multiplied with the values."""
    value = trace.values[op.outputs[0]]
    if len(value.shape) < 3 or value.forward is None or not value.forward.ms > 0:
        return
    queries, keys = value.shape[-2:]
    probe = value.attended
    hidden = value.forward.zero_share > 0.1 and queries == keys
    yield Attention(
        block=block,
        module=op.module,
        keys=keys,
        purity=value.forward.ms * keys,
        uniform=_causal_uniform(keys) if hidden else 1 / keys,
        logit_var=None if probe is None else probe.logit_var,
        logit_max=None if probe is None else probe.logit_max,
        head_logits=() if probe is None else _per_head(trace, places, op, probe.slice_logits, max),
        head_purities=() if probe is None else _per_head(trace, places, op, probe.slice_purities, fmean),
    )


def _per_head(
    trace: Trace,
    places: OpPlaces,
    op: Op,
    slices: tuple[float, ...],
    combine: Callable[[Sequence[float]], float],
) -> tuple[float, ...]:
    """What was measured of each head, from slices that are heads, or samples times heads; empty if that is not known.

    `nn.MultiheadAttention` puts samples and heads into one axis before the softmax, and separates them after it.
    """
    if len(trace.values[op.inputs[0]].shape) == 4 or not slices:
        return slices
    heads = _heads_beside(trace, places, op, len(slices))
    return tuple(combine(slices[head::heads]) for head in range(heads or 0))


def _heads_beside(trace: Trace, places: OpPlaces, op: Op, slices: int) -> int | None:
    """The heads of a tensor (samples, heads, ...) that is rearranged into what the op reads, or from what it writes."""
    before = trace.values[op.inputs[0]].op
    neighbors = [] if before is None or trace.ops[before].kind != "layout" else [*trace.ops[before].inputs]
    for reader in places.readers.get(op.outputs[0], ()):
        neighbors += reader.outputs if reader.kind == "layout" else ()
    for shape in (trace.values[each].shape for each in neighbors):
        if len(shape) == 4 and shape[0] * shape[1] == slices:
            return shape[1]
    return None


def _causal_uniform(keys: int) -> float:
    """Purity of uniform causal attention: the mean over rows of one over the number of visible keys."""
    return sum(1 / visible for visible in range(1, keys + 1)) / keys


def read_recurrences(trace: Trace, places: OpPlaces) -> Iterator[Recurrence]:
    """Recurrent ops that run over a whole sequence in one call."""
    parameters = {parameter.name: parameter for parameter in trace.parameters}
    for op in trace.ops:
        if op.kind != "recurrent" or op.name.endswith("_cell"):
            continue
        steps, variance = _steps(trace, op), _state_variance(op, parameters)
        if steps is not None and variance is not None:
            yield Recurrence(
                block=places.block.get(op.index, -1),
                module=op.module,
                op=op.name,
                steps=steps,
                variance=variance,
                slope_ms=_slope(op, trace.values[op.outputs[0]]),
            )


def _steps(trace: Trace, op: Op) -> int | None:
    shape = trace.values[op.inputs[0]].shape
    if len(shape) != 3:
        return None
    batch_first = argument(op, "batch_first", 8, default=False)
    return shape[1] if batch_first is True else shape[0]


def _state_variance(op: Op, parameters: Mapping[str, Parameter]) -> float | None:
    """Geometric mean over layers of the state matrix's variance; it is the second matrix of each layer."""
    matrices = [p for name in op.params if (p := parameters.get(name)) and len(p.shape) == 2]
    variances = [p.ms * p.shape[1] for p in matrices[1::2] if p.ms is not None]
    if not variances or min(variances) <= 0:
        return None
    return math.exp(sum(math.log(each) for each in variances) / len(variances))


def _slope(op: Op, states: Value) -> float | None:
    if states.forward is None or not math.isfinite(states.forward.ms):
        return None
    if op.name == "rnn_relu":
        return 1 - states.forward.zero_share
    if op.name == "rnn_tanh":
        return _tanh_slope(states.forward.ms)
    return None


def _tanh_slope(ms: float) -> float:
    r"""$E[\phi'^2]$ of the tanh whose output has this second moment, for a Gaussian before it."""
    low, high = 1e-6, 1e4
    for _ in range(BISECTION_STEPS):
        middle = math.sqrt(low * high)
        moments = activation_moments("tanh", 0.0, middle)
        low, high = (middle, high) if moments is not None and moments.square < ms else (low, middle)
    moments = activation_moments("tanh", 0.0, low)
    return 1.0 if moments is None else moments.slope_square


# All facts of a trace.

# Derived: activations with f(0) = 0 and a nonzero slope there, so that a unit at zero still learns.
ALIVE_AT_ZERO = frozenset(
    {
        *("silu", "gelu", "mish", "tanh", "elu", "celu", "selu", "softsign", "hardswish", "hardtanh"),
        *("erf", "leaky_relu", "prelu"),
    }
)


def read_facts(trace: Trace, structure: Structure) -> ModelFacts:
    """Weights, clones, attention, recurrences, inputs, the head and the dtype."""
    places = find_places(trace, structure)
    weights = read_weights(trace, structure, places)
    return ModelFacts(
        weights=weights,
        clones=read_clones(trace, structure),
        attentions=tuple(read_attentions(trace, places)),
        recurrences=tuple(read_recurrences(trace, places)),
        sources=tuple(read_sources(trace, structure, weights)),
        head=read_head(trace),
        precision=read_precision(trace),
        dropout=max((rate for op in trace.ops if (rate := dropout_rate(op))), default=0.0),
        low_rank=tuple(read_low_rank_terms(trace)),
    )


def with_unit_statistics(trace: Trace, structure: Structure) -> tuple[DepthBlock, ...]:
    """The blocks, each with the correlation of its samples, its units and its mean."""
    return tuple(
        msgspec.structs.replace(
            block,
            likeness=_likeness(trace, segments),
            units=_units(trace, segments),
            mean_share=_mean_share(trace.values[block.exit]),
        )
        for block, segments in zip(structure.blocks, structure.segments, strict=True)
    )


def _sample_correlation(value: Value) -> float | None:
    r"""Mean correlation of the samples, $\rho = (T s - 1) / (T - 1)$.

    There are $T$ vectors, and their mean has the share $s$ of the second moment. The correlation is not centered: a
    common mean counts. Several positions per sample are treated as separate vectors.
    """
    if value.common_ms is None or value.forward is None or len(value.shape) < 2 or not value.forward.ms > 0:
        return None
    units = value.shape[-1] if len(value.shape) <= 3 else value.shape[1]
    vectors = value.forward.count / units
    if (
        vectors < 2 or units < 2
    ):  # numbers have no direction: two of the same sign would count as the same vector
        return None
    correlation = (vectors * value.common_ms / value.forward.ms - 1) / (vectors - 1)
    return min(correlation, 1.0) if math.isfinite(correlation) else None


def _likeness(trace: Trace, segments: Sequence[Segment]) -> float | None:
    """The sample correlation of the last value on the axis for which it is known."""
    for segment in reversed(segments):
        correlation = _sample_correlation(trace.values[trace.ops[segment.exit].outputs[0]])
        if correlation is not None:
            return correlation
    return None


def _units(trace: Trace, segments: Sequence[Segment]) -> Units | None:
    ops = [trace.ops[op] for segment in segments for op in segment.ops]
    measured = [(op, units) for op in ops if (units := trace.values[op.outputs[0]].units) is not None]
    if not measured:
        return None
    bounded = [units.saturated for _, units in measured if units.saturated is not None]
    return Units(
        count=sum(units.count for _, units in measured),
        dead=sum(units.dead for op, units in measured if not _rests_at_zero(trace, op)),
        saturated=sum(bounded) if bounded else None,
    )


def _rests_at_zero(trace: Trace, op: Op) -> bool:
    """Whether the activation reads only zeros and has a slope there, as a gate whose matrix starts at zero."""
    read = trace.values[op.inputs[0]].forward if op.inputs else None
    return op.name in ALIVE_AT_ZERO and read is not None and read.zero_share == 1.0


def _mean_share(value: Value) -> float | None:
    stats = value.forward
    if stats is None or not stats.ms > 0 or not math.isfinite(stats.ms):
        return None
    return min(stats.mean**2 / stats.ms, 1.0)
