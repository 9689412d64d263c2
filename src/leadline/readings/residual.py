"""Finds residual adds and norms in the op graph, and names the blocks of the depth axis."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from leadline.ops.arguments import argument
from leadline.readings.graph import HEAVY, NEUTRAL, ROOT, Flow, is_weighted
from leadline.records import Op, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualSum:
    """A residual add, with the value ids of its skip and of its (largest) branch term."""

    add: int
    skip: int
    branch: int
    projected: bool
    norm_before: bool
    norm_inside: bool
    start: int
    """The op whose output is the block's start; ROOT for the batch input."""
    skip_factor: float = 1.0
    branch_factor: float = 1.0
    """Factors that the adds themselves apply to the terms: `torch.add(y, x, alpha=a)` is y + a x."""


def find_residual_sum(
    trace: Trace, flow: Flow, ops: Sequence[int], start: int, norms: frozenset[int]
) -> ResidualSum | None:
    """The residual add that ends the segment `ops`, which starts after op `start`; None if it does not end in one.

    A term is the skip if only neutral ops (layout, cast, dropout, scale, bias) lie between it and the start. Without
    one, a term with fewer weights than the others is a projected skip, as where a ResNet changes its width.
    """
    add = ops[-1]
    if trace.ops[add].kind != "add":
        return None
    inside = set(ops)
    factors = dict(_terms(trace, add, inside, flow))
    terms = list(factors)
    identity = [value for value in terms if _is_identity_path(trace, value, start, flow)]
    branches = [value for value in terms if value not in identity]
    branch_ops = {value: _ops_computing(trace, value, inside) for value in branches}
    if not any(trace.ops[op].kind in HEAVY or op in norms for each in branch_ops.values() for op in each):
        return None
    projected = not identity
    if projected:
        counts = {value: sum(is_weighted(trace.ops[op]) for op in each) for value, each in branch_ops.items()}
        skip = min(counts, key=counts.__getitem__)
        branches = [value for value in branches if counts[value] > counts[skip]]
        if not branches or counts[skip] > 1:
            return None
        identity = [skip]
    branch = max(branches, key=lambda value: len(branch_ops[value]))
    return ResidualSum(
        add=add,
        skip=identity[0],
        branch=branch,
        projected=projected,
        norm_before=_norm_before(trace, branch_ops[branch], norms),
        norm_inside=_norm_at_output(trace, branch_ops[branch], norms),
        start=start,
        skip_factor=factors[identity[0]],
        branch_factor=factors[branch],
    )


def _terms(trace: Trace, add: int, inside: set[int], flow: Flow) -> Iterator[tuple[int, float]]:
    """The terms of the sum and their factors; nested adds, as in `x + attention + mlp`, are one sum."""
    for position, value in enumerate(trace.ops[add].inputs):
        factor = _alpha(trace.ops[add]) if position else 1.0
        producer = trace.values[value].op
        if producer is not None and producer in inside and trace.ops[producer].kind == "add":
            yield from ((term, factor * inner) for term, inner in _terms(trace, producer, inside, flow))
        elif (
            (producer in inside or producer in flow.parents)
            if producer is not None
            else value == flow.source.id
        ):
            yield value, factor


def _alpha(op: Op) -> float:
    alpha = argument(op, "alpha", 2, 1.0) if op.name in ("add", "sub") else 1.0
    return float(alpha) if isinstance(alpha, int | float) else 1.0


def _is_identity_path(trace: Trace, value: int, start: int, flow: Flow) -> bool:
    while True:
        producer = trace.values[value].op
        if producer is None:
            return start == ROOT and value == flow.source.id
        if producer == start:
            return True
        signals = [each for each in trace.ops[producer].inputs if _is_signal(trace, each, flow)]
        if trace.ops[producer].kind not in NEUTRAL or len(signals) != 1 or producer <= start:
            return False
        value = signals[0]


def _is_signal(trace: Trace, value: int, flow: Flow) -> bool:
    producer = trace.values[value].op
    return producer in flow.parents if producer is not None else value == flow.source.id


def _ops_computing(trace: Trace, value: int, inside: set[int]) -> list[int]:
    """Ops of the segment that this value depends on, in execution order."""
    ops: set[int] = set()
    pending = [value]
    while pending:
        producer = trace.values[pending.pop()].op
        if producer is not None and producer in inside and producer not in ops:
            ops.add(producer)
            pending.extend(trace.ops[producer].inputs)
    return sorted(ops)


def _norm_before(trace: Trace, ops: Sequence[int], norms: frozenset[int]) -> bool:
    """Whether a norm comes before the branch's first weight."""
    first = next((op for op in ops if is_weighted(trace.ops[op])), None)
    return any(op in norms and (first is None or op < first) for op in ops)


def _norm_at_output(trace: Trace, ops: Sequence[int], norms: frozenset[int]) -> bool:
    """Whether a norm follows the branch's last weight, with only neutral ops after it."""
    if not any(is_weighted(trace.ops[op]) for op in ops):
        return False
    for op in reversed(ops):
        if op in norms:
            return True
        if trace.ops[op].kind not in NEUTRAL:
            return False
    return False


# Ops that normalize: norm ops, and norms written as arithmetic (such as Hugging Face's RMSNorm).

# Heuristic: ops between a reduction and the division that uses it; a LayerNorm written as arithmetic takes 6.
MAX_NORM_OPS = 10
_ARITHMETIC = frozenset({"pointwise", "reduce", "bias", "scale", "cast", "layout", "add", "product"})
_AVERAGES = frozenset({"mean", "sum", "var", "std", "var_mean", "std_mean", "norm", "vector_norm"})
_ROOTS = frozenset({"rsqrt", "sqrt", "pow", "std", "std_mean", "norm", "vector_norm"})


def find_norms(trace: Trace) -> frozenset[int]:
    """Indices of all ops whose output is normalized.

    Written as arithmetic, a norm is a product or quotient of the signal with a smaller tensor that was computed from
    the signal by an average and a root.
    """
    return frozenset(op.index for op in trace.ops if op.kind == "norm" or _divides_by_own_size(trace, op))


def _divides_by_own_size(trace: Trace, op: Op) -> bool:
    if op.kind != "product" or op.name not in ("mul", "div"):
        return False
    size = math.prod(trace.values[op.outputs[0]].shape)
    return any(
        math.prod(trace.values[value].shape) < size and _averaged_and_rooted(trace, value)
        for value in op.inputs
    )


def _averaged_and_rooted(trace: Trace, value: int) -> bool:
    names: set[str] = set()
    pending = [(value, 0)]
    while pending:
        value, steps = pending.pop()
        producer = trace.values[value].op
        if producer is None or steps > MAX_NORM_OPS or trace.ops[producer].kind not in _ARITHMETIC:
            continue
        names.add(trace.ops[producer].name)
        if trace.ops[producer].name not in _AVERAGES:  # before the average comes the signal itself
            pending.extend((each, steps + 1) for each in trace.ops[producer].inputs)
    return bool(names & _AVERAGES) and bool(names & _ROOTS)


# Names of blocks, from the user's module and parameter names.


def name_blocks(trace: Trace, blocks: Sequence[Sequence[int]]) -> list[str]:
    """A unique name for each block (given as op indices): the module that holds its weights.

    Blocks that share a module, like the attention and the feed-forward part of one layer, are distinguished by their
    first and last layers, and calls of the same module by a number.
    """
    paths = [_paths([trace.ops[op] for op in block]) for block in blocks]
    names = [_common(each) for each in paths]
    counts = Counter(names)
    names = [_span(name, each) if counts[name] > 1 else name for name, each in zip(names, paths, strict=True)]
    counts, calls = Counter(names), Counter[str]()
    for index, name in enumerate(names):
        calls[name] += 1
        if counts[name] > 1:
            names[index] = f"{name}#{calls[name]}"
    return names


def _paths(ops: Sequence[Op]) -> list[str]:
    weighted = [op for op in ops if is_weighted(op)]
    paths = [_path(op) for op in weighted or ops]
    return list(dict.fromkeys(path for path in paths if path)) or [ops[-1].name if ops else "?"]


def _path(op: Op) -> str:
    """The module that was running, or the one inside it that owns the op's parameters.

    A parameter of the model itself gives its own name. A tied weight is owned elsewhere: then the caller counts.
    """
    if not op.params:
        return op.module
    owner = op.params[0].rpartition(".")[0] or op.params[0]
    inside = not op.module or owner.startswith(f"{op.module}.")
    return owner if inside else op.module


def _common(paths: Sequence[str]) -> str:
    """The innermost path that contains all of them."""
    parts = [path.split(".") for path in paths]
    shared = 0
    while all(shared < len(each) for each in parts) and len({each[shared] for each in parts}) == 1:
        shared += 1
    return ".".join(parts[0][:shared]) or "…".join(dict.fromkeys((paths[0], paths[-1])))


def _span(name: str, paths: Sequence[str]) -> str:
    """The name with its first and last layer: `layers.3` with `fc1` and `fc2` becomes `layers.3.fc1…fc2`."""
    tails = [path.removeprefix(f"{name}.") for path in paths if path.startswith(f"{name}.")]
    return f"{name}.{'…'.join(dict.fromkeys((tails[0], tails[-1])))}" if tails else name
