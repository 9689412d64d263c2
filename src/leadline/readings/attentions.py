"""Attention and recurrence: how queries spread over keys, and what a state is multiplied by from step to step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from leadline.ops.arguments import argument
from leadline.ops.slopes import slope_of
from leadline.readings.weights import Places
from leadline.records import Attention, Op, Parameter, Recurrence, Trace, Value

HALVINGS = 30  # of the interval in which the variance before a tanh is sought: 1e-9 of it is left


def read_attentions(trace: Trace, places: Places) -> Iterator[Attention]:
    """Fused attention as it was probed; spelled-out attention by the second moment of its softmax."""
    for op in trace.ops:
        value = trace.values[op.outputs[0]]
        block = places.block.get(op.index, -1)
        if op.kind == "attention" and value.attended is not None:
            seen = value.attended
            yield Attention(
                block=block,
                module=op.module,
                keys=seen.keys,
                purity=seen.purity,
                uniform=1 / seen.keys,
                logit_var=seen.logit_var,
                logit_max=seen.logit_max,
            )
        elif op.name == "softmax" and any(
            reader.kind in ("product", "dropout") for reader in places.readers.get(value.id, ())
        ):
            yield from _spelled_out(trace, op, value, block)


def _spelled_out(trace: Trace, op: Op, value: Value, block: int) -> Iterator[Attention]:
    """A softmax over the last dimension of weights between positions that a product with values reads."""
    if len(value.shape) < 3 or value.forward is None or not value.forward.ms > 0:
        return
    queries, keys = value.shape[-2:]
    logits = trace.values[op.inputs[0]].forward
    masked = logits is None or logits.non_finite > 0 or logits.abs_max > 1e4
    hidden = value.forward.zero_share > 0.1 and queries == keys
    yield Attention(
        block=block,
        module=op.module,
        keys=keys,
        purity=value.forward.ms * keys,
        uniform=_causal_uniform(keys) if hidden else 1 / keys,
        logit_var=None if masked or logits is None else logits.var,
        logit_max=None if masked or logits is None else logits.abs_max,
    )


def _causal_uniform(keys: int) -> float:
    """Mean over rows of one over the number of visible keys."""
    return sum(1 / seen for seen in range(1, keys + 1)) / keys


def read_recurrences(trace: Trace, places: Places) -> Iterator[Recurrence]:
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
    """Geometric mean over layers: of each layer's matrices the second is the state's."""
    matrices = [p for name in op.params if (p := parameters.get(name)) and len(p.shape) == 2]
    found = [p.ms * p.shape[1] for p in matrices[1::2] if p.ms is not None]
    if not found or min(found) <= 0:
        return None
    return math.exp(sum(math.log(each) for each in found) / len(found))


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
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        found = slope_of("tanh", 0.0, middle)
        low, high = (middle, high) if found is not None and found.ms < ms else (low, middle)
    found = slope_of("tanh", 0.0, low)
    return 1.0 if found is None else found.slope_ms
