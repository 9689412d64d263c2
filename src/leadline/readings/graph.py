"""The part of the op graph between one batch input and the loss, with its dominators."""

from __future__ import annotations

from dataclasses import dataclass

from leadline.ops.table import find_op
from leadline.records import Op, Trace, Value

WEIGHTED = frozenset({"weight", "recurrent", "embedding"})
HEAVY = WEIGHTED | {"attention"}
# Kinds of ops that pass a signal on, so that a skip path may contain them.
NEUTRAL = frozenset({"layout", "cast", "dropout", "scale", "bias"})
# Derived: stands for the batch input where an op index is expected; indices are not negative.
ROOT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The part of the graph between one batch input and the loss."""

    source: Value
    ops: tuple[int, ...]
    """Ops that the signal passes on its way to the loss, in execution order."""
    parents: dict[int, tuple[int, ...]]
    """For each of these ops, the ops whose output it reads as signal; ROOT for the input itself."""
    dominators: tuple[int, ...]
    """The dominators of the loss: the ops that lie on every path from the input to it, in order."""


def flow_from(trace: Trace, source: Value) -> Flow | None:
    """Follow one batch input to the loss; None if the loss does not depend on it as a signal.

    Floating-point values and integers (token ids) carry a signal, booleans do not: a mask that is computed from the
    tokens opens no path. Integers that enter a loss are labels.
    """
    if trace.loss_value is None:
        return None
    parents = _signal_parents(trace, source)
    goal = trace.values[trace.loss_value].op
    if goal not in parents:
        return None
    used = _ancestors(goal, parents)
    ops = tuple(index for index in parents if index in used)
    return Flow(
        source=source,
        ops=ops,
        parents={index: parents[index] for index in ops},
        dominators=_dominators(ops, parents, goal),
    )


def is_weighted(op: Op) -> bool:
    """Whether the op multiplies by trained weights."""
    return op.kind in WEIGHTED


def carries(value: Value) -> bool:
    """Whether a value can carry a signal."""
    return value.dtype != "bool"


def _signal_parents(trace: Trace, source: Value) -> dict[int, tuple[int, ...]]:
    carrying = {source.id}
    parents: dict[int, tuple[int, ...]] = {}
    for op in trace.ops:
        read = [value for value in op.inputs if value in carrying and _enters(trace.values[value], op)]
        if not read or _reads_shapes(op):
            continue
        producers = (trace.values[value].op for value in read)
        parents[op.index] = tuple(
            dict.fromkeys(ROOT if producer is None else producer for producer in producers)
        )
        carrying.update(value for value in op.outputs if carries(trace.values[value]))
    return parents


def _reads_shapes(op: Op) -> bool:
    row = find_op(op.name) if op.kind == "create" else None
    return row is not None and row.reads_shapes


def _enters(value: Value, op: Op) -> bool:
    return value.floating or op.kind != "loss"


def _ancestors(goal: int, parents: dict[int, tuple[int, ...]]) -> set[int]:
    ancestors, pending = {goal}, [goal]
    while pending:
        for parent in parents[pending.pop()]:
            if parent != ROOT and parent not in ancestors:
                ancestors.add(parent)
                pending.append(parent)
    return ancestors


def _dominators(ops: tuple[int, ...], parents: dict[int, tuple[int, ...]], goal: int) -> tuple[int, ...]:
    """The dominators of `goal`, by intersecting chains (Cooper, Harvey and Kennedy, 2001).

    One pass is enough because execution order is a topological order.
    """
    depth = {ROOT: 0}
    dominator_of = {ROOT: ROOT}
    for op in ops:
        common = parents[op][0]
        for other in parents[op][1:]:
            while common != other:
                if depth[common] < depth[other]:
                    other = dominator_of[other]
                else:
                    common = dominator_of[common]
        dominator_of[op] = common
        depth[op] = depth[common] + 1
    chain = []
    while goal != ROOT:
        chain.append(goal)
        goal = dominator_of[goal]
    return tuple(reversed(chain))
