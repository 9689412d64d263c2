r"""Chain-rule attribution: the change of the signal along the depth axis as a sum of log-gains per op.

Along a path of values $v_0 \to v_1 \to \dots \to v_k$ the logarithm of any positive quantity $m$ telescopes,
$\ln m(v_k) - \ln m(v_0) = \sum_j [\ln m(v_j) - \ln m(v_{j-1})]$, and each term belongs to the op between the two
values. So the factors sum to the measured change for any ops; an op without a kind of its own is shown as rest.

A residual block is split at its add. The skip alone would pass the factor $s$ (1 for the identity, $\alpha^2$ for a
scaled one); the remaining $\ln(m_{out}/m_{in}) - \ln s$ belongs to the branch, including its correlation with the skip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from leadline.ops.arguments import argument
from leadline.ops.gaussian import activation_moments
from leadline.readings.graph import ROOT, is_weighted
from leadline.readings.residual import ResidualSum
from leadline.readings.structure import Segment, Structure
from leadline.records import LOSS_BLOCK, Attribution, Factor, FactorKind, Op, Parameter, Trace, Value

_KINDS: dict[str | None, FactorKind] = {
    "weight": "weight",
    "recurrent": "weight",
    "embedding": "weight",
    "activation": "activation",
    "gate": "activation",
    "norm": "norm",
    "attention": "attention",
    "softmax": "attention",
    "product": "product",
    "scale": "scale",
    "bias": "scale",
    "dropout": "scale",
    "pool": "pool",
    "reduce": "pool",
    "loss": "loss",
    "add": "branch",
}
# Kinds that only move elements, so they have no factor.
_MOVING = ("layout", "cast")


class Gains(NamedTuple):
    """Natural logarithms of the factors that an op applies to the second moment and to the squared gradient."""

    forward: float | None
    backward: float | None


UNKNOWN = Gains(None, None)


def predict_gains(op: Op, read: Value, parameters: Mapping[str, Parameter]) -> Gains:
    """The gains of one op that reads the signal `read`; unknown without a formula."""
    if read.forward is None or not read.forward.ms > 0:
        return UNKNOWN
    if op.kind == "weight":
        return _weight(op, read, parameters)
    if op.kind == "activation":
        return _activation(op, read)
    if op.kind == "norm":
        return _norm(op, read, parameters)
    if op.kind == "dropout":
        return _dropout(op)
    return UNKNOWN


def weight_variance(op: Op, parameters: Mapping[str, Parameter]) -> float | None:
    r"""$\sigma_w^2 = n\,E[W^2]$ of a weight layer, where $n$ is its fan-in; None if its weight is not in the trace."""
    weight = next((p for name in op.params if (p := parameters.get(name)) and len(p.shape) > 1), None)
    if weight is None or weight.ms is None or (fan_in := fan_in_of(op, weight)) is None:
        return None
    return fan_in * weight.ms


def fan_in_of(op: Op, weight: Parameter) -> int | None:
    """Number of inputs that one output of a weight layer sums over; None if it is not the same for all."""
    if op.name == "linear":
        return weight.shape[-1]
    if op.name in ("conv1d", "conv2d", "conv3d"):
        return math.prod(weight.shape[1:])
    if op.name in ("matmul", "mm", "addmm"):
        return weight.shape[-2]
    return None


def _weight(op: Op, read: Value, parameters: Mapping[str, Parameter]) -> Gains:
    """Gains under independent zero-mean weights; a bias adds its second moment."""
    variance = weight_variance(op, parameters)
    if not variance or read.forward is None:
        return UNKNOWN
    biases = (p for name in op.params if (p := parameters.get(name)) and len(p.shape) == 1)
    bias_ms = sum(bias.ms or 0.0 for bias in biases)
    return Gains(_log_ratio(variance + bias_ms / read.forward.ms), _log_ratio(variance))


def _activation(op: Op, read: Value) -> Gains:
    """Gains for a Gaussian input of the measured mean and variance."""
    if read.forward is None:
        return UNKNOWN
    moments = activation_moments(op.name, read.forward.mean, read.forward.var)
    if moments is None:
        return UNKNOWN
    return Gains(_log_ratio(moments.square / read.forward.ms), _log_ratio(moments.slope_square))


def _norm(op: Op, read: Value, parameters: Mapping[str, Parameter]) -> Gains:
    r"""Gains of norms: centering ones divide by the variance and remove 2 of $d$ directions.

    RMSNorm divides by the second moment and removes 1 of $d$. A batch norm uses the variance of each feature, which
    excludes what the samples have in common.
    """
    if read.forward is None or not read.shape:
        return UNKNOWN
    gammas = [p for name in op.params if (p := parameters.get(name)) and p.ms is not None]
    gamma_ms = gammas[0].ms if gammas and gammas[0].ms is not None else 1.0
    width = read.shape[-1]
    if op.name == "layer_norm":
        size, share = read.forward.var, 1 - 2 / width if width > 2 else 1.0
    elif op.name == "rms_norm":
        size, share = read.forward.ms, 1 - 1 / width if width > 1 else 1.0
    elif op.name == "batch_norm" and read.common_ms is not None:
        size, share = max(read.forward.ms - read.common_ms, 0.0), 1 - 2 / (read.forward.count / read.shape[1])
    else:
        return UNKNOWN
    return Gains(
        _log_ratio(gamma_ms / read.forward.ms), _log_ratio(gamma_ms * share / size) if size > 0 else None
    )


def _dropout(op: Op) -> Gains:
    """Gains of inverted dropout: the second moment is divided by the share of entries it keeps."""
    rate, on = argument(op, "p", 1, 0.5), argument(op, "training", 2, default=True)
    gain = -math.log1p(-rate) if on is True and isinstance(rate, float) and 0 <= rate < 1 else 0.0
    return Gains(gain, gain)


def _log_ratio(gain: float) -> float | None:
    return math.log(gain) if gain > 0 and math.isfinite(gain) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisStep:
    """One op on the axis, or a whole residual branch, with the values before and after it."""

    block: int
    kind: FactorKind
    op: Op
    before: Value
    after: Value
    skip: float | None = None
    """Log of the factor that the skip of a residual block applies to the second moment; None if it is not known."""


class LogGain(NamedTuple):
    """One term of the sum, in one direction."""

    block: int
    kind: FactorKind
    op: str
    gain: float
    theory: float | None


def attribute(trace: Trace, structure: Structure) -> Attribution:
    """The factors of every block, forward and backward, with their predicted values."""
    parameters = {parameter.name: parameter for parameter in trace.parameters}
    factors: list[Factor] = []
    for index, flow in enumerate(structure.flows):
        steps: list[AxisStep] = []
        start = ROOT
        for block, segments in enumerate(structure.segments):
            if structure.blocks[block].stream == index:
                for segment in segments:
                    steps += _steps(trace, structure, block, segment, start, flow.source)
                    start = segment.exit
        forward = list(_log_gains(steps, _ms, parameters, 0))
        backward = [*_log_gains(steps, _power, parameters, 1), *_loss_gain(structure, index, steps)]
        factors += _factors(forward, backward)
    return Attribution(factors=tuple(factors))


def _steps(
    trace: Trace, structure: Structure, block: int, segment: Segment, start: int, source: Value
) -> Iterator[AxisStep]:
    before = source if start == ROOT else trace.values[trace.ops[start].outputs[0]]
    exit_value = trace.values[trace.ops[segment.exit].outputs[0]]
    if segment.sum is not None:
        skip = _skip_gain(trace, segment.sum, before)
        op = trace.ops[segment.sum.add]
        yield AxisStep(block=block, kind="branch", op=op, before=before, after=exit_value, skip=skip)
        return
    path = _path(trace, structure.flows[structure.blocks[block].stream].parents, segment, start)
    for here, following in zip(path, [*path[1:], None], strict=True):
        op = trace.ops[here]
        after = exit_value if following is None else _value_between(trace, op, trace.ops[following])
        kind: FactorKind = "norm" if here in structure.norms else _KINDS.get(op.kind, "rest")
        yield AxisStep(block=block, kind=kind, op=op, before=before, after=after)
        before = after


def _path(trace: Trace, parents: dict[int, tuple[int, ...]], segment: Segment, start: int) -> list[int]:
    """The path through a segment with the most weights; among several, the one with the fewest ops."""
    cost = {start: (0, 0)}
    before = {start: start}
    for op in segment.ops:
        reached = [parent for parent in parents.get(op, ()) if parent in cost]
        before[op] = min(reached, key=cost.__getitem__, default=start)
        weights, length = cost[before[op]]
        cost[op] = (weights - is_weighted(trace.ops[op]), length + 1)
    path, op = [], segment.exit
    while op != start:
        path.append(op)
        op = before[op]
    return path[::-1]


def _value_between(trace: Trace, op: Op, reader: Op) -> Value:
    return trace.values[next((value for value in op.outputs if value in reader.inputs), op.outputs[0])]


Moment = Callable[[Value], float | None]


def _log_gains(
    steps: Sequence[AxisStep], moment: Moment, parameters: Mapping[str, Parameter], direction: int
) -> Iterator[LogGain]:
    """One term per step, two for a residual block; `direction` is 0 for forward and 1 for backward."""
    sign = -1 if direction else 1  # the gradient enters a step at its far end
    for step, change in _changes(steps, moment):
        if step.skip is not None:
            yield LogGain(step.block, "skip", "add", step.skip, None)
            yield LogGain(step.block, "branch", "add", sign * change - step.skip, None)
        else:
            theory = predict_gains(step.op, step.before, parameters)[direction]
            yield LogGain(step.block, step.kind, step.op.name, sign * change, theory)


def _changes(steps: Sequence[AxisStep], moment: Moment) -> Iterator[tuple[AxisStep, float]]:
    """The change of the logarithm across each step, or across several steps where a value was not measured."""
    pending: list[AxisStep] = []
    last = moment(steps[0].before) if steps else None
    for step in steps:
        pending.append(step)
        now = moment(step.after)
        if now is None:
            continue
        if last is not None:
            yield _merge_steps(pending), now - last
        last, pending = now, []


def _merge_steps(steps: Sequence[AxisStep]) -> AxisStep:
    """Several steps as one: the only one that changes the signal, or a step of the kind "rest"."""
    acting = [step for step in steps if step.op.kind not in _MOVING]
    if len(acting) == 1:
        return acting[0]
    return steps[0] if len(steps) == 1 else replace(steps[-1], kind="rest", skip=None)


def _loss_gain(structure: Structure, stream: int, steps: Sequence[AxisStep]) -> Iterator[LogGain]:
    """The factor of the loss: the gradient power at the last block, since the loss's own gradient is 1."""
    powers = (_power(step.after) for step in reversed(steps))
    power = next((each for each in powers if each is not None), None)
    if power is not None and structure.streams[stream].joins is None:
        yield LogGain(LOSS_BLOCK, "loss", "", power, None)


def _factors(forward: Sequence[LogGain], backward: Sequence[LogGain]) -> Iterator[Factor]:
    """One factor per kind in each block."""
    keys = dict.fromkeys((gain.block, gain.kind) for gain in (*forward, *backward))
    sides = [_by_key(forward), _by_key(backward)]
    for block, kind in sorted(keys, key=lambda key: key[0] if key[0] != LOSS_BLOCK else math.inf):
        ahead, back = (side.get((block, kind), []) for side in sides)
        gains = ahead if len(ahead) > len(back) else back
        yield Factor(
            block=block,
            kind=kind,
            op=max(gains, key=lambda each: abs(each.gain)).op,
            ops=len(gains),
            forward=sum(each.gain for each in ahead) if ahead else None,
            backward=sum(each.gain for each in back) if back else None,
            forward_theory=_theory(ahead),
            backward_theory=_theory(back),
        )


def _by_key(gains: Sequence[LogGain]) -> dict[tuple[int, FactorKind], list[LogGain]]:
    by_key: dict[tuple[int, FactorKind], list[LogGain]] = {}
    for gain in gains:
        by_key.setdefault((gain.block, gain.kind), []).append(gain)
    return by_key


def _theory(gains: Sequence[LogGain]) -> float | None:
    """The sum of the predicted gains; None if one is not predicted."""
    known = [gain.theory for gain in gains if gain.theory is not None]
    return sum(known) if gains and len(known) == len(gains) else None


def _ms(value: Value) -> float | None:
    return None if value.forward is None or not value.floating else _log(value.forward.ms)


def _power(value: Value) -> float | None:
    return None if value.backward is None else _log(value.backward.ms * value.backward.count)


def _log(moment: float) -> float | None:
    """The logarithm; None for a moment that is zero or not finite."""
    return math.log(moment) if moment > 0 and math.isfinite(moment) else None


def _skip_gain(trace: Trace, residual_sum: ResidualSum, before: Value) -> float | None:
    """Logarithm of the factor of the skip alone; forward and backward it is the same."""
    later, earlier = _ms(trace.values[residual_sum.skip]), _ms(before)
    if residual_sum.projected or later is None or earlier is None or not residual_sum.skip_factor:
        return None
    return later - earlier + 2 * math.log(abs(residual_sum.skip_factor))
