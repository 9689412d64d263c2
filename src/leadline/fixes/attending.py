"""Where a model attends: for each attention the op, its module, and the projections that make queries and keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from leadline.fixes.fix import Patient
from leadline.records import Op, Trace

SEEN_THROUGH = frozenset({"layout", "cast", "dropout", "bias", "select", "scale", "add", "join", "product"})
"""Kinds of ops between a projection and the logits: heads are cut, rotary angles applied, lengths scaled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attending:
    """One attention of the pass."""

    module: str
    """Path of the module whose code computes it."""
    fused: bool
    """It is one call of `scaled_dot_product_attention`."""
    head_width: int
    projections: tuple[str, str] | None
    """Paths of the modules whose outputs are the queries and the keys; None if they are not two modules."""
    normed: bool
    """Queries and keys come out of a norm already."""


def attentions(patient: Patient) -> Iterator[Attending]:
    """Every attention of the forward pass, in order; a module that attends twice is left out."""
    found = [each for op in patient.trace.ops if (each := _attending(patient.trace, op)) is not None]
    paths = [each.module for each in found]
    yield from (each for each in found if paths.count(each.module) == 1 and each.module)


def _attending(trace: Trace, op: Op) -> Attending | None:
    logits = op if op.kind == "attention" else _logits(trace, op)
    if logits is None or op.phase != "forward":
        return None
    query, key = logits.inputs[0], logits.inputs[1]
    makers = [_makers(trace, number) for number in (query, key)]
    paths = [each[0].module for each in makers if len(each) == 1 and each[0].kind == "weight"]
    apart = len(paths) == 2 and paths[0] != paths[1] and op.module not in paths
    return Attending(
        module=op.module,
        fused=op.kind == "attention",
        head_width=trace.values[query].shape[-1],
        projections=(paths[0], paths[1]) if apart else None,
        normed=all(any(_is_norm(trace, maker) for maker in each) for each in makers),
    )


def _logits(trace: Trace, op: Op) -> Op | None:
    """The product of queries and keys that a spelled-out softmax reads; None if it reads no such thing."""
    if op.name != "softmax" or len(trace.values[op.outputs[0]].shape) < 3:
        return None
    value = op.inputs[0]
    while (number := trace.values[value].op) is not None:
        maker = trace.ops[number]
        if maker.kind == "product" and _contracts(trace, maker):
            return maker
        if maker.kind not in ("layout", "cast", "scale", "add", "bias", "dropout", "select"):
            return None
        value = maker.inputs[0]
    return None


def _contracts(trace: Trace, op: Op) -> bool:
    """A matrix product of queries (..., n, d) with transposed keys (..., d, m)."""
    shapes = [trace.values[number].shape for number in op.inputs[:2]]
    if op.name not in ("matmul", "bmm") or len(shapes) < 2:
        return False
    return min(map(len, shapes)) >= 3 and shapes[0][-1] == shapes[1][-2]


def _makers(trace: Trace, value: int) -> list[Op]:
    """The weights and norms that a value is made of, seen through what only rearranges, adds and rotates."""
    found: dict[int, Op] = {}
    waiting, done = [value], set[int]()
    while waiting:
        number = trace.values[waiting.pop()].op
        if number is None or number in done:
            continue
        done.add(number)
        op = trace.ops[number]
        if op.kind in SEEN_THROUGH and not _is_norm(trace, op):
            waiting.extend(_signals(trace, op))
        else:
            found[number] = op
    return list(found.values())


def _signals(trace: Trace, op: Op) -> list[int]:
    """What an op reads but parameters, constants, and tables that are spread over the batch."""
    wanted = [n for n in op.inputs if trace.values[n].floating and trace.values[n].source is None]
    if op.kind not in ("scale", "product", "bias"):
        return [n for n in wanted if trace.values[n].shape != (0,)]
    shape = trace.values[op.outputs[0]].shape
    return [n for n in wanted if trace.values[n].shape == shape] or wanted[:1]


def _is_norm(trace: Trace, op: Op) -> bool:
    """A norm of PyTorch, or one that is spelled out as x * rsqrt(mean square)."""
    makers = [trace.ops[number].name for n in op.inputs if (number := trace.values[n].op) is not None]
    return op.kind == "norm" or (op.kind == "product" and "rsqrt" in makers)
