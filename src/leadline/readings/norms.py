"""Which ops normalise: those named so, and those spelled out as arithmetic (Hugging Face's RMSNorm, say)."""

from __future__ import annotations

import math

from leadline.records import Op, Trace

REACH = 10  # ops between a reduction and the division that uses it; LayerNorm written out in full takes 6
_ARITHMETIC = frozenset({"pointwise", "reduce", "bias", "scale", "cast", "layout", "add", "product"})
_AVERAGES = frozenset({"mean", "sum", "var", "std", "var_mean", "std_mean", "norm", "vector_norm"})
_ROOTS = frozenset({"rsqrt", "sqrt", "pow", "std", "std_mean", "norm", "vector_norm"})


def find_norms(trace: Trace) -> frozenset[int]:
    """Indices of all ops whose output is normalised.

    Spelled out, a norm is a product or quotient of the signal with a smaller tensor that was made from the signal by an
    average and a root.
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
    todo = [(value, 0)]
    while todo:
        value, steps = todo.pop()
        maker = trace.values[value].op
        if maker is None or steps > REACH or trace.ops[maker].kind not in _ARITHMETIC:
            continue
        names.add(trace.ops[maker].name)
        if trace.ops[maker].name not in _AVERAGES:  # behind the average lies the signal itself
            todo.extend((each, steps + 1) for each in trace.ops[maker].inputs)
    return bool(names & _AVERAGES) and bool(names & _ROOTS)
