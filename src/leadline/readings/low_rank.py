"""Low-rank terms beside frozen matrices, as LoRA adds them: found by their ops, never by the names of classes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from leadline.records import LowRankTerm, Op, OpSite, Parameter, Trace, Value

# Kinds of ops that keep what a matrix computed, up to a factor.
PASSING = frozenset({"layout", "cast", "dropout", "scale"})
# Heuristic: between a product of two thin matrices and the sum with the frozen one lie a few casts and factors.
MAX_PATH = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matrix:
    """A matrix that an op applies, the signal that it reads, and the factor between its result and a later value."""

    op: Op
    parameter: Parameter
    signal: int | None
    """Value that the matrix is applied to; None if it is multiplied with another matrix."""
    factor: float


def read_low_rank_terms(trace: Trace) -> Iterator[LowRankTerm]:
    r"""The terms $s\,B A$ with a trained $B$ that the pass adds to a frozen $W$: to $W x$, or to $W$ itself."""
    parameters = {each.name: each for each in trace.parameters}
    if all(each.trainable for each in trace.parameters):
        return
    for op in trace.ops:
        if op.name not in ("add", "sub") or len(op.inputs) != 2:
            continue
        for frozen, added in (op.inputs, op.inputs[::-1]):
            term = _beside(trace, op, frozen, added, parameters) or _merged(
                trace, op, frozen, added, parameters
            )
            if term is not None:
                yield term
                break


def _beside(
    trace: Trace, op: Op, frozen: int, added: int, parameters: dict[str, Parameter]
) -> LowRankTerm | None:
    """The term of `W x + s B (A x)`."""
    up = _applied(trace, added, parameters)
    if up is None or not up.parameter.trainable or up.signal is None:
        return None
    down = _applied(trace, up.signal, parameters)
    base = _applied(trace, frozen, parameters, through_sums=True)
    if down is None or base is None or base.parameter.trainable:
        return None
    if down.signal is None or base.signal is None:
        return None
    if _origin(trace, down.signal) != _origin(trace, base.signal):
        return None
    factor = up.factor * down.factor * _alpha(op, added) / base.factor
    return _term(op, base.parameter, down.parameter, up.parameter, factor)


def _merged(
    trace: Trace, op: Op, frozen: int, added: int, parameters: dict[str, Parameter]
) -> LowRankTerm | None:
    """The term of `(W + s B A) x`, in which the sum is made before anything is applied."""
    base, _ = _parameter_behind(trace, frozen, parameters)
    product, factor = _walk_back(trace, added, parameters)
    if base is None or base.trainable or product is None or product.kind != "product":
        return None
    if len(product.inputs) != 2 or trace.values[product.outputs[0]].shape != base.shape:
        return None
    (up, left), (down, right) = (_parameter_behind(trace, each, parameters) for each in product.inputs)
    if up is None or down is None or not up.trainable:
        return None
    return _term(op, base, down, up, factor * left * right * _alpha(op, added))


def _term(op: Op, base: Parameter, down: Parameter, up: Parameter, factor: float) -> LowRankTerm | None:
    """The term, if the two matrices are thin in the same dimension and the factor is known."""
    ranks = set(down.shape) & set(up.shape)
    rank = min(ranks) if len(down.shape) == len(up.shape) == len(base.shape) == 2 and ranks else 0
    if not 0 < rank < min(base.shape) or down.count * up.count != rank**2 * base.count:
        return None
    if not math.isfinite(factor) or factor == 0:
        return None
    return LowRankTerm(
        site=OpSite(op=op.name, module=op.module, source=op.source),
        base=base.name,
        down=down.name,
        up=up.name,
        rank=rank,
        scale=abs(factor),
    )


def _applied(
    trace: Trace, value: int, parameters: dict[str, Parameter], *, through_sums: bool = False
) -> _Matrix | None:
    """The matrix whose result this value is, up to a factor; `through_sums`: or is the first operand of."""
    op, factor = _walk_back(trace, value, parameters, through_sums=through_sums)
    if op is None or op.kind != "weight":
        return None
    signals = list[int]()
    matrix: Parameter | None = None
    for each in op.inputs:
        parameter, scale = _parameter_behind(trace, each, parameters)
        if parameter is None:
            signals.append(each)
        elif len(parameter.shape) == 2:
            matrix, factor = parameter, factor * scale
    if matrix is None or len(signals) != 1:
        return None
    return _Matrix(op=op, parameter=matrix, signal=signals[0], factor=factor)


def _walk_back(
    trace: Trace, value: int, parameters: dict[str, Parameter], *, through_sums: bool = False
) -> tuple[Op | None, float]:
    """The first op behind a value that does more than pass it on, and the factor on the way; NaN if not known."""
    factor = 1.0
    for _ in range(MAX_PATH):
        producer = trace.values[value].op
        if producer is None:
            return None, factor
        op = trace.ops[producer]
        is_sum = through_sums and op.kind == "add"
        if op.kind not in PASSING and not is_sum:
            return op, factor
        factor *= _factor(trace, op, parameters) if op.kind == "scale" else 1.0
        value = op.inputs[0] if op.kind != "scale" else _scaled(trace, op)
    return None, factor


def _scaled(trace: Trace, op: Op) -> int:
    """The input that a factor multiplies: the one with the most elements."""
    return max(op.inputs, key=lambda each: math.prod(trace.values[each].shape))


def _factor(trace: Trace, op: Op, parameters: dict[str, Parameter]) -> float:
    """The one number that the op multiplies by; NaN if it is not known, or there are several."""
    others = [each for each in op.inputs if each != _scaled(trace, op)]
    numbers = [each for each in op.args if isinstance(each, int | float) and not isinstance(each, bool)]
    factors = [float(each) for each in numbers] + [_single(trace.values[each], parameters) for each in others]
    if op.name not in ("mul", "div") or len(factors) != 1 or factors[0] == 0:
        return math.nan
    return factors[0] if op.name == "mul" else 1 / factors[0]


def _single(value: Value, parameters: dict[str, Parameter]) -> float:
    if math.prod(value.shape) != 1:
        return math.nan
    parameter = parameters.get(value.name) if value.source == "parameter" else None
    if parameter is not None and parameter.mean is not None:
        return parameter.mean
    return value.forward.mean if value.forward is not None else math.nan


def _parameter_behind(
    trace: Trace, value: int, parameters: dict[str, Parameter]
) -> tuple[Parameter | None, float]:
    """The parameter that this value is, up to layout, dtype and a factor."""
    factor = 1.0
    for _ in range(MAX_PATH):
        each = trace.values[value]
        if each.source == "parameter":
            return parameters.get(each.name), factor
        if each.op is None or trace.ops[each.op].kind not in PASSING or not trace.ops[each.op].inputs:
            return None, factor
        op = trace.ops[each.op]
        factor *= _factor(trace, op, parameters) if op.kind == "scale" else 1.0
        value = _scaled(trace, op) if op.kind == "scale" else op.inputs[0]
    return None, factor


def _origin(trace: Trace, value: int) -> int:
    """The value before casts, dropout and changes of layout."""
    for _ in range(MAX_PATH):
        op = trace.values[value].op
        if op is None or trace.ops[op].kind not in ("layout", "cast", "dropout"):
            return value
        value = trace.ops[op].inputs[0]
    return value


def _alpha(op: Op, added: int) -> float:
    """The factor `alpha` of `torch.add`, which multiplies its second operand."""
    alpha = op.kwargs.get("alpha", 1)
    return float(alpha) if isinstance(alpha, int | float) and op.inputs[1] == added else 1.0
