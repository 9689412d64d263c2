"""Networks with several residual streams: the matrices that mix them, followed from layer to layer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from leadline.ops.arguments import argument
from leadline.records import Mixing, Op, Trace, Value
from leadline.records.parts import StreamMixing
from leadline.records.wiring import OpSite

# Kinds of ops between the streams that one layer writes and those that the next one mixes.
PASSING = frozenset({"add", "bias", "layout", "cast", "dropout", "scale", "select", "join"})
# Heuristic: ops between two mixings along the streams; a branch is never on that way.
MAX_PATH = 64
# Heuristic: twenty Sinkhorn iterations of three ops for each axis, with room for casts.
MAX_NORMALIZATION_OPS = 240
# Derived: a single product shows no stream that goes on, and small attention has the same shapes.
MIN_LAYERS = 2


def read_mixings(trace: Trace) -> Iterator[StreamMixing]:
    """The chains of products that mix the same streams one after the other."""
    products = {
        value.id: value for value in trace.values if value.mixing is not None and value.op is not None
    }
    following = {_previous(trace, value, products): value for value in products.values()}
    written = {each.id for key, each in following.items() if key is not None}
    readers: dict[int, list[Op]] = defaultdict(list)
    for op in trace.ops if products else ():
        for each in op.inputs:
            readers[each].append(op)
    for first in products.values():
        if first.id in written:
            continue
        chain = [first]
        while (successor := following.get(chain[-1].id)) is not None:
            chain.append(successor)
        if len(chain) >= MIN_LAYERS:
            yield _mixing(trace, chain, readers)


def _previous(trace: Trace, value: Value, products: dict[int, Value]) -> int | None:
    """The product whose streams reach this one without passing a branch; None if it is the first."""
    op = trace.ops[value.op or 0]
    pending = [each for each in op.inputs if _are_streams(trace, each, value)]
    for _ in range(MAX_PATH):
        if not pending:
            return None
        current = pending.pop(0)
        if current in products and products[current].shape == value.shape:
            return current
        made_by = trace.values[current].op
        if made_by is not None and trace.ops[made_by].kind in PASSING:
            pending += [each for each in trace.ops[made_by].inputs if trace.values[each].floating]
    return None


def _are_streams(trace: Trace, operand: int, result: Value) -> bool:
    """Whether the operand of a product is what is mixed, and not the matrix."""
    return sorted(trace.values[operand].shape) == sorted(result.shape)


def _mixing(trace: Trace, chain: Sequence[Value], readers: Mapping[int, Sequence[Op]]) -> StreamMixing:
    mixings = [each.mixing for each in chain if each.mixing is not None]
    first, last = trace.ops[chain[0].op or 0], trace.ops[chain[-1].op or 0]
    product = _product(mixings)
    spreads = [each.gradient_spread for each in mixings]
    gradients = [each for each in spreads if each is not None and math.isfinite(each)]  # of zeros it is NaN
    return StreamMixing(
        site=OpSite(op=first.name, module=first.module, source=first.source),
        last=last.module,
        streams=mixings[0].streams,
        layers=len(chain),
        forward_gain=max(sum(map(abs, row)) for row in product),
        backward_gain=max(sum(map(abs, column)) for column in zip(*product, strict=True)),
        row_error=max(each.row_error for each in mixings),
        column_error=max(each.column_error for each in mixings),
        is_normalized=all(_is_normalized(trace, each) for each in chain),
        spread=max(each.spread for each in mixings),
        gradient_spread=max(gradients) if len(gradients) == len(mixings) else None,
        writes=sum(_is_written(trace, each, readers[each.id]) for each in chain[1:]),
    )


def _product(mixings: Sequence[Mixing]) -> list[list[float]]:
    """The product of the mean matrices, the last one on the left."""
    size = mixings[0].streams
    total = [[float(i == j) for j in range(size)] for i in range(size)]
    for each in mixings:
        rows = [each.matrix[i * size : (i + 1) * size] for i in range(size)]
        total = [[sum(row[k] * total[k][j] for k in range(size)) for j in range(size)] for row in rows]
    return total


def _is_written(trace: Trace, value: Value, readers: Sequence[Op]) -> bool:
    """Whether something other than zero is added to the mixed streams."""
    for op in readers:
        if op.kind == "add":
            others = [trace.values[each].forward for each in op.inputs if each != value.id]
            return any(each is not None and each.ms > 0 for each in others)
    return False


# Whether the matrix is meant to be doubly stochastic.


def _is_normalized(trace: Trace, value: Value) -> bool:
    """Whether both axes of the matrix were normalized, one of them last: by a softmax, or by division by a sum."""
    op = trace.ops[value.op or 0]
    matrices = [each for each in op.inputs if not _are_streams(trace, each, value)]
    if not matrices or value.mixing is None:
        return False
    size, axes = value.mixing.streams, set[int]()
    made_by = _before_layout(trace, matrices[0])
    if made_by is None or _normalized_axis(trace, made_by, size) is None:
        return False
    pending, seen = [made_by.index], set[int]()
    while pending and len(seen) < MAX_NORMALIZATION_OPS and len(axes) < 2:
        current = trace.ops[pending.pop()]
        if current.index in seen:
            continue
        seen.add(current.index)
        axis = _normalized_axis(trace, current, size)
        axes |= set() if axis is None else {axis}
        for each in current.inputs:
            origin = trace.values[each].op
            if origin is not None and trace.values[each].shape[-2:] == (size, size):
                pending.append(origin)
    return len(axes) == 2


def _before_layout(trace: Trace, value: int) -> Op | None:
    """The op that made a matrix, before casts, changes of layout and the exponential of its logarithm."""
    made_by = trace.values[value].op
    while made_by is not None:
        op = trace.ops[made_by]
        if op.kind not in ("layout", "cast") and op.name != "exp":
            return op
        made_by = trace.values[op.inputs[0]].op if op.inputs else None
    return None


def _normalized_axis(trace: Trace, op: Op, size: int) -> int | None:
    """-1 or -2 if the op normalizes that axis of matrices of this size; else None."""
    shape = trace.values[op.outputs[0]].shape
    if shape[-2:] != (size, size):
        return None
    if op.name in ("softmax", "log_softmax"):
        return _axis(argument(op, "dim", 1), len(shape))
    if op.name in ("div", "true_divide", "sub") and len(op.inputs) > 1:
        origin = trace.values[op.inputs[1]].op
        while origin is not None and trace.ops[origin].kind in ("add", "bias", "pointwise", "cast"):
            source = trace.ops[origin].inputs[:1]
            origin = trace.values[source[0]].op if source else None
        if origin is not None and trace.ops[origin].name in ("sum", "logsumexp"):
            return _axis(argument(trace.ops[origin], "dim", 1), len(shape))
    return None


def _axis(dim: object, dimensions: int) -> int | None:
    if isinstance(dim, list | tuple) and len(dim) == 1:
        dim = dim[0]
    if not isinstance(dim, int):
        return None
    axis = dim if dim < 0 else dim - dimensions
    return axis if axis in (-1, -2) else None
