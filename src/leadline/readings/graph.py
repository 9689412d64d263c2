"""The op graph of a trace as one batch input sees it: which ops its signal passes, and through which it must pass."""

from __future__ import annotations

from dataclasses import dataclass

from leadline.records import Op, Trace, Value

WEIGHTED = frozenset({"weight", "recurrent", "embedding"})
HEAVY = WEIGHTED | {"attention"}
NEUTRAL = frozenset(
    {"layout", "cast", "dropout", "scale", "bias"}
)  # pass a signal on: a skip path may hold them


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The part of the graph between one batch input and the loss."""

    source: Value
    ops: tuple[int, ...]
    """Ops that the signal passes on its way to the loss, in execution order."""
    parents: dict[int, tuple[int, ...]]
    """For each of these, the ops whose output it reads as signal; ROOT for the input itself."""
    waist: tuple[int, ...]
    """The ops that lie on every path from the input to the loss, in order: the dominators of the loss."""


ROOT = -1  # stands for the batch input where an op index is expected


def flow_from(trace: Trace, source: Value) -> Flow | None:
    """Follow one batch input to the loss; None if the loss does not depend on it as a signal.

    A signal is carried by floating-point values and by integers (token ids), not by booleans: a mask that is computed
    from the tokens opens no path. Integers that enter a loss are labels.
    """
    if trace.loss_value is None:
        return None
    parents = _reachable(trace, source)
    goal = trace.values[trace.loss_value].op
    if goal not in parents:
        return None
    used = _ancestors(goal, parents)
    ops = tuple(index for index in parents if index in used)
    return Flow(
        source=source,
        ops=ops,
        parents={index: parents[index] for index in ops},
        waist=_dominators(ops, parents, goal),
    )


def is_weighted(op: Op) -> bool:
    return op.kind in WEIGHTED


def carries(value: Value) -> bool:
    """Whether a value can carry a signal at all."""
    return value.dtype != "bool"


def _reachable(trace: Trace, source: Value) -> dict[int, tuple[int, ...]]:
    live = {source.id}
    parents: dict[int, tuple[int, ...]] = {}
    for op in trace.ops:
        read = [value for value in op.inputs if value in live and _enters(trace.values[value], op)]
        if not read:
            continue
        makers = (trace.values[value].op for value in read)
        parents[op.index] = tuple(dict.fromkeys(ROOT if maker is None else maker for maker in makers))
        live.update(value for value in op.outputs if carries(trace.values[value]))
    return parents


def _enters(value: Value, op: Op) -> bool:
    return value.floating or op.kind != "loss"


def _ancestors(goal: int, parents: dict[int, tuple[int, ...]]) -> set[int]:
    found, todo = {goal}, [goal]
    while todo:
        for parent in parents[todo.pop()]:
            if parent != ROOT and parent not in found:
                found.add(parent)
                todo.append(parent)
    return found


def _dominators(ops: tuple[int, ...], parents: dict[int, tuple[int, ...]], goal: int) -> tuple[int, ...]:
    """The dominators of `goal`, by intersecting chains (Cooper, Harvey and Kennedy, 2001).

    One pass is enough: execution order is a topological order.
    """
    depth = {ROOT: 0}
    above = {ROOT: ROOT}
    for op in ops:
        common = parents[op][0]
        for other in parents[op][1:]:
            while common != other:
                if depth[common] < depth[other]:
                    other = above[other]
                else:
                    common = above[common]
        above[op] = common
        depth[op] = depth[common] + 1
    chain = []
    while goal != ROOT:
        chain.append(goal)
        goal = above[goal]
    return tuple(reversed(chain))
