"""What the trace tells beside statistics: which values carry a signal, need a gradient, or hold ignored labels."""

from __future__ import annotations

from dataclasses import dataclass

from leadline.ops.arguments import argument
from leadline.records import Op, Trace

IGNORED = -100  # the label that PyTorch's losses leave out by default


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """By value id."""

    live: frozenset[int]
    """Depends on the batch or on a parameter."""
    trained: frozenset[int]
    """Has a gradient: depends on a trainable parameter by a way that gradients go."""
    ignored: dict[int, float]
    """Of labels: the share that a loss leaves out."""
    causal: frozenset[int]
    """Made by comparing positions or by cutting a triangle out: a mask that hides what comes later."""


def read_facts(trace: Trace) -> Facts:
    trainable = {parameter.name for parameter in trace.parameters if parameter.trainable}
    live = {value.id for value in trace.values if value.source in ("input", "target", "parameter")}
    trained = {value.id for value in trace.values if value.source == "parameter" and value.name in trainable}
    ignored: dict[int, float] = {}
    causal: set[int] = set()
    for op in trace.ops:
        if causal.intersection(op.inputs) or _hides_the_future(op, trace):
            causal.update(
                value for value in op.outputs if value not in live or not trace.values[value].floating
            )
        if live.intersection(op.inputs):
            live.update(op.outputs)
        if op.name not in ("detach", "data") and trained.intersection(op.inputs):
            trained.update(value for value in op.outputs if trace.values[value].floating)
        share = _ignored_by(op, trace, ignored)
        if share:
            ignored.update(dict.fromkeys(op.outputs, share))
    return Facts(live=frozenset(live), trained=frozenset(trained), ignored=ignored, causal=frozenset(causal))


def _hides_the_future(op: Op, trace: Trace) -> bool:
    """A triangle, or a comparison of two tensors of positions that spans a square."""
    shape = trace.values[op.outputs[0]].shape
    square = len(shape) > 1 and shape[-1] == shape[-2] > 1
    compares = op.name in ("le", "lt", "ge", "gt") and len(op.inputs) == 2
    return square and (op.name in ("tril", "triu") or compares)


def _ignored_by(op: Op, trace: Trace, known: dict[int, float]) -> float:
    """Padding labels with the ignored one and cutting the other end off is how language models shift them."""
    if not op.inputs or trace.values[op.outputs[0]].floating:
        return 0.0
    before = known.get(op.inputs[0], 0.0)
    if op.name == "pad" and argument(op, "value", 3) == IGNORED:
        old, new = (max(trace.values[each].shape[-1:] or (1,)) for each in (op.inputs[0], op.outputs[0]))
        return before + (new - old) / new if new else before
    if op.name == "getitem" and before:
        old, new = (max(trace.values[each].shape[-1:] or (1,)) for each in (op.inputs[0], op.outputs[0]))
        return min(before * old / new, 1.0) if new else before
    return before if op.kind in ("layout", "cast", "select") else 0.0
