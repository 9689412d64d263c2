"""Products of queries and keys: how large they are, and whether anything scales them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from leadline.records import Op, Trace, Value
from leadline.records.parts import AttentionProduct
from leadline.records.wiring import OpSite

# Kinds of ops between a product and its softmax, or between a projection and the product, that keep its size.
PASSING = frozenset({"layout", "cast", "dropout", "select", "join", "add", "bias", "pointwise"})
# Heuristic: a rotary embedding and a mask are about twenty ops; a longer path is no attention.
MAX_PATH = 40
# Derived: float32 rounds a factor of 1 to this.
MAX_FACTOR_ROUNDING = 1e-5


@dataclass(slots=True)
class _Path:
    """What lies on the way back from a value to the op that made it."""

    op: Op | None = None
    """The product or weight at the end; None if the path ends elsewhere."""
    has_factor: bool = False
    is_normalized: bool = False
    factor: float = 1.0
    """The product of the numbers that it multiplies by."""


def read_attention_products(trace: Trace) -> Iterator[AttentionProduct]:
    """The products of two signals that a softmax reads whose result is multiplied with a third."""
    readers: dict[int, list[Op]] = defaultdict(list)
    for op in trace.ops:
        for value in op.inputs:
            readers[value].append(op)
    for op in trace.ops:
        if op.name == "softmax" and _weights_a_signal(op, readers):
            yield from _product_behind(trace, op)


def _weights_a_signal(softmax: Op, readers: dict[int, list[Op]]) -> bool:
    """Whether a product reads the softmax, directly or after a dropout or a change of layout."""
    pending = list(softmax.outputs)
    for _ in range(MAX_PATH):
        if not pending:
            return False
        for reader in readers[pending.pop()]:
            if reader.kind == "product":
                return True
            if reader.kind in ("dropout", "layout", "cast"):
                pending += reader.outputs
    return False


def _product_behind(trace: Trace, softmax: Op) -> Iterator[AttentionProduct]:
    path = _walk_back(trace, trace.values[softmax.inputs[0]], "product")
    product = path.op
    if product is None or len(product.inputs) < 2:
        return
    query, key = (trace.values[each] for each in product.inputs[-2:])
    width, stats = _contraction(product, query), trace.values[product.outputs[0]].forward
    if width is None or stats is None or query.forward is None or key.forward is None:
        return
    operands = [_walk_back(trace, each, "weight") for each in (query, key)]
    yield AttentionProduct(
        site=OpSite(op=product.name, module=product.module, source=product.source),
        op=product.index,
        width=width,
        keys=trace.values[softmax.inputs[0]].shape[-1],
        variance=stats.var,
        query_ms=query.forward.ms,
        key_ms=key.forward.ms,
        has_factor=product.kwargs.get("alpha", 1) != 1 or any(each.has_factor for each in (path, *operands)),
        is_normalized=any(each.is_normalized for each in operands),
        factor=path.factor * math.prod(each.factor for each in operands),
    )


def _walk_back(trace: Trace, value: Value, goal: str) -> _Path:
    """Follow a value back, through masks, biases, rotations and changes of layout, to an op of the kind `goal`."""
    path = _Path()
    for _ in range(MAX_PATH):
        if value.op is None:
            return path
        op = trace.ops[value.op]
        if op.kind == goal or (goal == "product" and _is_product_of_learned_queries(op)):
            path.op = op
            return path
        if op.kind == "norm":
            path.is_normalized = True
            return path
        if op.kind in ("activation", "product"):
            path.has_factor = True  # a bounded function, or a temperature that depends on the signal
            return path
        path.has_factor = path.has_factor or _is_factor(trace, op)
        path.factor *= _factor(trace, op)
        if op.kind not in PASSING and op.kind != "scale":
            path.is_normalized = path.is_normalized or op.kind == "reduce"
            return path
        inputs = [trace.values[each] for each in op.inputs if trace.values[each].floating]
        if not inputs:
            return path
        value = max(
            inputs, key=lambda each: math.prod(each.shape)
        )  # the others are masks, biases and constants
    return path


def _is_product_of_learned_queries(op: Op) -> bool:
    """Whether a matrix computed from parameters alone, such as the queries of learned seeds, meets a signal."""
    return op.kind == "weight" and op.name in ("matmul", "bmm", "einsum") and not op.params


def _is_factor(trace: Trace, op: Op) -> bool:
    """Whether the op multiplies by one number other than 1, or by a parameter; rotations multiply by many numbers."""
    if op.kind != "scale":
        return False
    others = [trace.values[each] for each in op.inputs[1:]]
    if any(each.source == "parameter" for each in others) or op.params:
        return True
    if any(math.prod(each.shape) > 1 for each in others):
        return False
    before, after = trace.values[op.inputs[0]].forward, trace.values[op.outputs[0]].forward
    if before is None or after is None or not before.ms > 0 or not math.isfinite(before.ms):
        return True
    return abs(after.ms / before.ms - 1) > MAX_FACTOR_ROUNDING


def _factor(trace: Trace, op: Op) -> float:
    """The number by which an op multiplies its input; 1 if it does something else, or by more than one number."""
    others = [math.prod(trace.values[each].shape) for each in op.inputs[1:]]
    if op.kind != "scale" or op.params or any(count > 1 for count in others) or not op.inputs:
        return 1.0
    before, after = trace.values[op.inputs[0]].forward, trace.values[op.outputs[0]].forward
    if before is None or after is None or not before.ms > 0 or not math.isfinite(after.ms):
        return 1.0
    return math.sqrt(after.ms / before.ms)


def _contraction(product: Op, query: Value) -> int | None:
    """The number of products that each element of the result sums; None if it is not known."""
    if product.name != "einsum":
        return query.shape[-1] if query.shape else None
    equation = product.args[0] if product.args else None
    if not isinstance(equation, str) or "->" not in equation or "." in equation:
        return None
    left, _, result = equation.replace(" ", "").partition("->")
    letters = left.split(",")[0]
    if len(letters) != len(query.shape):
        return None
    summed = [size for letter, size in zip(letters, query.shape, strict=True) if letter not in result]
    return math.prod(summed) if summed else None
