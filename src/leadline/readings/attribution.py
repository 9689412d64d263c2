"""Chain-rule attribution: the change of the signal along the depth axis as a sum of log-gains per op."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from leadline.ops.arguments import argument
from leadline.ops.gaussian import activation_moments
from leadline.readings.graph import ROOT, is_weighted
from leadline.readings.residual import Sum
from leadline.readings.structure import Segment, Structure
from leadline.records import LOSS_BLOCK, Attribution, Factor, FactorKind, Op, Parameter, Trace, Value


class Gains(NamedTuple):
    """Natural logarithms of what an op multiplies the second moment and the squared gradient by."""

    forward: float | None
    backward: float | None


UNKNOWN = Gains(None, None)


def predicted(op: Op, read: Value, parameters: Mapping[str, Parameter]) -> Gains:
    """The gains of one op that reads the signal `read`; unknown where there is no formula."""
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
    r"""$\sigma_w^2 = n\,E[W^2]$ of a weight layer, $n$ being its fan-in; None if its weight was not seen."""
    weight = next((p for name in op.params if (p := parameters.get(name)) and len(p.shape) > 1), None)
    if weight is None or weight.ms is None or (fan_in := fan_in_of(op, weight)) is None:
        return None
    return fan_in * weight.ms


def fan_in_of(op: Op, weight: Parameter) -> int | None:
    """How many inputs one output of a weight layer sums over; None where that is no one number."""
    if op.name == "linear":
        return weight.shape[-1]
    if op.name in ("conv1d", "conv2d", "conv3d"):
        return math.prod(weight.shape[1:])
    if op.name in ("matmul", "mm", "addmm"):
        return weight.shape[-2]
    return None


def _weight(op: Op, read: Value, parameters: Mapping[str, Parameter]) -> Gains:
    """Independent zero-mean weights; a bias adds its own second moment."""
    variance = weight_variance(op, parameters)
    if not variance or read.forward is None:
        return UNKNOWN
    biases = (p for name in op.params if (p := parameters.get(name)) and len(p.shape) == 1)
    bias_ms = sum(bias.ms or 0.0 for bias in biases)
    return Gains(_log_ratio(variance + bias_ms / read.forward.ms), _log_ratio(variance))


def _activation(op: Op, read: Value) -> Gains:
    """A Gaussian input of the measured mean and variance."""
    if read.forward is None:
        return UNKNOWN
    moments = activation_moments(op.name, read.forward.mean, read.forward.var)
    if moments is None:
        return UNKNOWN
    return Gains(_log_ratio(moments.square / read.forward.ms), _log_ratio(moments.slope_square))


def _norm(op: Op, read: Value, parameters: Mapping[str, Parameter]) -> Gains:
    r"""Centring norms divide by the variance and remove 2 of $d$ directions; RMSNorm by the second moment and 1 of $d$.

    A batch norm's variance is that of each feature: what the samples have in common is taken out of it.
    """
    if read.forward is None or not read.shape:
        return UNKNOWN
    gammas = [p for name in op.params if (p := parameters.get(name)) and p.ms is not None]
    gamma_ms = gammas[0].ms if gammas and gammas[0].ms is not None else 1.0
    width = read.shape[-1]
    if op.name == "layer_norm":
        size, kept = read.forward.var, 1 - 2 / width if width > 2 else 1.0
    elif op.name == "rms_norm":
        size, kept = read.forward.ms, 1 - 1 / width if width > 1 else 1.0
    elif op.name == "batch_norm" and read.common_ms is not None:
        size, kept = max(read.forward.ms - read.common_ms, 0.0), 1 - 2 / (read.forward.count / read.shape[1])
    else:
        return UNKNOWN
    return Gains(
        _log_ratio(gamma_ms / read.forward.ms), _log_ratio(gamma_ms * kept / size) if size > 0 else None
    )


def _dropout(op: Op) -> Gains:
    """Inverted dropout keeps the mean and divides the second moment by what it keeps; off, it does nothing."""
    rate, on = argument(op, "p", 1, 0.5), argument(op, "training", 2, default=True)
    gain = -math.log1p(-rate) if on is True and isinstance(rate, float) and 0 <= rate < 1 else 0.0
    return Gains(gain, gain)


def _log_ratio(gain: float) -> float | None:
    return math.log(gain) if gain > 0 and math.isfinite(gain) else None


# Chain-rule attribution: the change of the signal along the depth axis, as a sum of what each op did to it.
#
# Along a path of values $v_0 \to v_1 \to \dots \to v_k$ the logarithm of any positive quantity telescopes,
# $\ln m(v_k) - \ln m(v_0) = \sum_j [\ln m(v_j) - \ln m(v_{j-1})]$, and each term belongs to the op between the two. So
# the factors sum to what was measured, whatever the ops are; an op that the table does not know is shown as rest.
#
# A residual block is split at its add. The skip alone would pass the factor $s$ (1 for the identity, $\alpha^2$ for a
# scaled one); what the branch makes of that, its correlation with the skip included, is the remaining
# $\ln(m_{out}/m_{in}) - \ln s$.

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
_STILL = ("layout", "cast")  # move elements about: no factor of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One op on the axis, or a whole residual branch, with the values before and behind it."""

    block: int
    kind: FactorKind
    op: Op
    before: Value
    behind: Value
    skip: float | None = None
    """What the skip multiplies the second moment by, where the step is a residual block; None: not known."""


class Share(NamedTuple):
    """A term of the sum, in one direction."""

    block: int
    kind: FactorKind
    op: str
    gain: float
    theory: float | None


def attribute(trace: Trace, structure: Structure) -> Attribution:
    """The factors of every block, forward and backward, with what theory expects of them."""
    parameters = {parameter.name: parameter for parameter in trace.parameters}
    factors: list[Factor] = []
    for index, flow in enumerate(structure.flows):
        steps: list[Step] = []
        start = ROOT
        for block, segments in enumerate(structure.segments):
            if structure.blocks[block].stream == index:
                for segment in segments:
                    steps += _steps(trace, structure, block, segment, start, flow.source)
                    start = segment.exit
        forward = list(_shares(steps, _ms, parameters, 0))
        backward = [*_shares(steps, _power, parameters, 1), *_loss(structure, index, steps)]
        factors += _merged(forward, backward)
    return Attribution(factors=tuple(factors))


def _steps(
    trace: Trace, structure: Structure, block: int, segment: Segment, start: int, source: Value
) -> Iterator[Step]:
    before = source if start == ROOT else trace.values[trace.ops[start].outputs[0]]
    behind = trace.values[trace.ops[segment.exit].outputs[0]]
    if segment.sum is not None:
        skip = _skip_gain(trace, segment.sum, before)
        op = trace.ops[segment.sum.add]
        yield Step(block=block, kind="branch", op=op, before=before, behind=behind, skip=skip)
        return
    path = _path(trace, structure.flows[structure.blocks[block].stream].parents, segment, start)
    for here, following in zip(path, [*path[1:], None], strict=True):
        op = trace.ops[here]
        after = behind if following is None else _handed_on(trace, op, trace.ops[following])
        kind: FactorKind = "norm" if here in structure.norms else _KINDS.get(op.kind, "rest")
        yield Step(block=block, kind=kind, op=op, before=before, behind=after)
        before = after


def _path(trace: Trace, parents: dict[int, tuple[int, ...]], segment: Segment, start: int) -> list[int]:
    """The way through a segment that multiplies by the most weights; of several, the one of fewest ops."""
    cost = {start: (0, 0)}
    before = {start: start}
    for op in segment.ops:
        known = [parent for parent in parents.get(op, ()) if parent in cost]
        before[op] = min(known, key=cost.__getitem__, default=start)
        weights, length = cost[before[op]]
        cost[op] = (weights - is_weighted(trace.ops[op]), length + 1)
    path, op = [], segment.exit
    while op != start:
        path.append(op)
        op = before[op]
    return path[::-1]


def _handed_on(trace: Trace, op: Op, reader: Op) -> Value:
    return trace.values[next((value for value in op.outputs if value in reader.inputs), op.outputs[0])]


Moment = Callable[[Value], float | None]


def _shares(
    steps: Sequence[Step], moment: Moment, parameters: Mapping[str, Parameter], direction: int
) -> Iterator[Share]:
    """One share a step, two for a residual block; `direction` is 0 forward, 1 backward."""
    sign = -1 if direction else 1  # the gradient enters a step at its far end
    for step, change in _changes(steps, moment):
        if step.skip is not None:
            yield Share(step.block, "skip", "add", step.skip, None)
            yield Share(step.block, "branch", "add", sign * change - step.skip, None)
        else:
            theory = predicted(step.op, step.before, parameters)[direction]
            yield Share(step.block, step.kind, step.op.name, sign * change, theory)


def _changes(steps: Sequence[Step], moment: Moment) -> Iterator[tuple[Step, float]]:
    """The change of the logarithm across each step; where a value was not measured, across several together."""
    pending: list[Step] = []
    last = moment(steps[0].before) if steps else None
    for step in steps:
        pending.append(step)
        now = moment(step.behind)
        if now is None:
            continue
        if last is not None:
            yield _together(pending), now - last
        last, pending = now, []


def _together(steps: Sequence[Step]) -> Step:
    """Several steps as one: the only one of them that does anything, else something that cannot be told apart."""
    acting = [step for step in steps if step.op.kind not in _STILL]
    if len(acting) == 1:
        return acting[0]
    return steps[0] if len(steps) == 1 else replace(steps[-1], kind="rest", skip=None)


def _loss(structure: Structure, stream: int, steps: Sequence[Step]) -> Iterator[Share]:
    """The gradient of the loss with respect to itself is 1; what reaches the last block is the loss's own factor."""
    power = next((found for step in reversed(steps) if (found := _power(step.behind)) is not None), None)
    if power is not None and structure.streams[stream].joins is None:
        yield Share(LOSS_BLOCK, "loss", "", power, None)


def _merged(forward: Sequence[Share], backward: Sequence[Share]) -> Iterator[Factor]:
    """One factor for each kind in each block."""
    keys = dict.fromkeys((share.block, share.kind) for share in (*forward, *backward))
    sides = [_by_key(forward), _by_key(backward)]
    for block, kind in sorted(keys, key=lambda key: key[0] if key[0] != LOSS_BLOCK else math.inf):
        there, back = (side.get((block, kind), []) for side in sides)
        shares = there if len(there) > len(back) else back
        yield Factor(
            block=block,
            kind=kind,
            op=max(shares, key=lambda share: abs(share.gain)).op,
            ops=len(shares),
            forward=sum(share.gain for share in there) if there else None,
            backward=sum(share.gain for share in back) if back else None,
            forward_theory=_theory(there),
            backward_theory=_theory(back),
        )


def _by_key(shares: Sequence[Share]) -> dict[tuple[int, FactorKind], list[Share]]:
    found: dict[tuple[int, FactorKind], list[Share]] = {}
    for share in shares:
        found.setdefault((share.block, share.kind), []).append(share)
    return found


def _theory(shares: Sequence[Share]) -> float | None:
    """What theory expects of all of them; None if it has no word on one."""
    known = [share.theory for share in shares if share.theory is not None]
    return sum(known) if shares and len(known) == len(shares) else None


def _ms(value: Value) -> float | None:
    return None if value.forward is None or not value.floating else _log(value.forward.ms)


def _power(value: Value) -> float | None:
    return None if value.backward is None else _log(value.backward.ms * value.backward.count)


def _log(moment: float) -> float | None:
    """None where a logarithm would say nothing."""
    return math.log(moment) if moment > 0 and math.isfinite(moment) else None


def _skip_gain(trace: Trace, found: Sum, before: Value) -> float | None:
    """Logarithm of what the skip alone does to a second moment; forward and backward it is the same."""
    later, earlier = _ms(trace.values[found.skip]), _ms(before)
    if found.projected or later is None or earlier is None or not found.skip_factor:
        return None
    return later - earlier + 2 * math.log(abs(found.skip_factor))
