"""Where the graph of the loss is cut before trainable parameters: the op, the module and the user's line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from leadline.ops.table import LAYOUT_KINDS
from leadline.records import GraphCut, GraphExit, Op, Trace, Value

RANDOM_OPS = frozenset(["randn", "randn_like"])
"""Ops that draw from a standard normal distribution."""
# How ops that end a graph read in a program.
SPELLINGS = {"detach": ".detach()", "data": ".data", "tensor": "torch.tensor(...)", "__float__": "float(...)"}


def find_cuts(trace: Trace) -> tuple[GraphCut, ...]:
    """The cuts of the pass, each with the trainable parameters that get no gradient, or only zeros, because of it."""
    used = [each for each in trace.parameters if each.trainable and each.used]
    lost = [each.name for each in used if each.grad_norm is None]
    still = tuple(each.name for each in used if each.grad_norm == 0)
    if len(still) == len(
        used
    ):  # nothing learns: a cut is the cause, and something else keeps the graph alive
        lost = [*still]
    return (*_cuts(trace, lost), *_zero_gradient(trace, still), *_draws(trace))


def remedy(cut: GraphCut) -> str:
    """What to do about a cut, as an imperative clause without a full stop."""
    place = "" if cut.place is None else f" in {cut.place}"
    if cut.how == "no_grad":
        return f"Take {cut.op}{place} out of the `torch.no_grad()` block"
    if cut.how == "discrete":
        return f"Replace {cut.op}{place} by something differentiable, such as a softmax"
    if cut.how == "draw":
        return f"Draw{place} with `rsample()`, or as mean + deviation * torch.randn_like(deviation)"
    if cut.how == "exit":
        return f"Keep the tensor instead of calling `{SPELLINGS.get(cut.op, f'.{cut.op}()')}`{place}"
    if cut.how == "zero":
        why = "a factor of 0, a clamped or saturated output, dead units or a rounding does that"
        return f"Look at {cut.op}{place}, which passes no gradient on: {why}"
    return f"Remove `{SPELLINGS.get(cut.op, cut.op)}`{place}"


def _zero_gradient(trace: Trace, parameters: tuple[str, ...]) -> Iterator[GraphCut]:
    """The op nearest to the loss whose output has a gradient while all its inputs get exactly zero."""
    if not parameters:
        return
    for op in reversed(trace.ops):
        is_loss = trace.loss_value in op.outputs
        arrives = is_loss or any(_has_gradient(trace.values[each]) for each in op.outputs)
        passed = [
            trace.values[each].backward for each in op.inputs if trace.values[each].backward is not None
        ]
        if arrives and passed and all(each is not None and each.ms == 0 for each in passed):
            place = op.source
            yield GraphCut(how="zero", op=op.name, module=op.module, place=place, parameters=parameters)
            return


def _draws(trace: Trace) -> Iterator[GraphCut]:
    """The first normal draw whose mean or deviation learns, if layers behind it learn from its result alone.

    Where the probability of the result is asked for, as in policy gradients, its distance from the mean is computed,
    and the mean gets its gradient there.
    """
    random = values_after(trace, (value for op in trace.ops if op.name in RANDOM_OPS for value in op.outputs))
    draws = [
        op
        for op in trace.ops
        if op.inputs and (op.name == "normal" or (op.cut in ("call", "no_grad") and random & {*op.inputs}))
    ]
    if not draws:
        return
    trainable = {each.name for each in trace.parameters if each.trainable and each.used}
    learned = _descendants(trace, trainable)
    reaching = _ancestors(trace, [trace.loss_value] if trace.loss_value is not None else [])
    for op in draws:
        if not learned & {*op.inputs} or not reaching & {*op.outputs}:
            continue
        drawn, after = _views(trace, op.outputs), values_after(trace, op.outputs)
        is_scored = any(each.name in ("sub", "rsub") and drawn & {*each.inputs} for each in trace.ops)
        is_decoded = any(trainable & {*each.params} and after & {*each.inputs} for each in trace.ops)
        if is_decoded and not is_scored:
            yield GraphCut(how="draw", op=op.name, module=op.module, place=op.source)
            return


def _cuts(trace: Trace, lost: Sequence[str]) -> Iterator[GraphCut]:
    reaching = _ancestors(trace, [trace.loss_value] if trace.loss_value is not None else [])
    cuts: dict[int | str, tuple[Op | GraphExit, list[str]]] = {}
    for name in lost:
        after = _descendants(trace, {name})
        cut = _first_cut(trace, after, reaching) or _last_exit(trace, after)
        if cut is not None:
            key = cut.index if isinstance(cut, Op) else f"exit {cut.value}"
            cuts.setdefault(key, (cut, []))[1].append(name)
    for cut, names in cuts.values():
        how = cut.cut if isinstance(cut, Op) else "exit"
        if how is not None:
            place = cut.source
            yield GraphCut(how=how, op=cut.name, module=cut.module, place=place, parameters=tuple(names))


def _first_cut(trace: Trace, after: AbstractSet[int], reaching: AbstractSet[int]) -> Op | None:
    """The first op behind a parameter, on a way to the loss, that ends the graph."""
    for op in trace.ops:
        if op.cut is not None and after & {*op.inputs} and reaching & {*op.outputs}:
            return op
    return None


def _last_exit(trace: Trace, after: AbstractSet[int]) -> GraphExit | None:
    """The last conversion to Python or NumPy of something that a parameter went into."""
    return next((each for each in reversed(trace.exits) if each.value in after), None)


def _descendants(trace: Trace, parameters: AbstractSet[str]) -> set[int]:
    """Values that were computed from any of these parameters, and the parameters themselves."""
    return values_after(
        trace, (each.id for each in trace.values if each.source == "parameter" and each.name in parameters)
    )


def _views(trace: Trace, values: Iterable[int]) -> set[int]:
    """These values, also in another shape or dtype."""
    known = {*values}
    for op in trace.ops:
        if op.kind in LAYOUT_KINDS and not known.isdisjoint(op.inputs):
            known.update(op.outputs)
    return known


def values_after(trace: Trace, values: Iterable[int]) -> set[int]:
    """These values, and everything that is computed from them."""
    known = {*values}
    for op in trace.ops:
        if not known.isdisjoint(op.inputs):
            known.update(op.outputs)
    return known


def _ancestors(trace: Trace, values: Iterable[int]) -> set[int]:
    """Values that these were computed from, and themselves."""
    known = {*values}
    for op in reversed(trace.ops):
        if not known.isdisjoint(op.outputs):
            known.update(op.inputs)
    return known


def _has_gradient(value: Value) -> bool:
    return value.backward is not None and value.backward.ms > 0
