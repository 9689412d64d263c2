"""Recognising `x + f(x)`: a sum of which one term is the segment's own start, and where its branch has norms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from leadline.ops.arguments import argument
from leadline.readings.graph import HEAVY, NEUTRAL, ROOT, Flow, is_weighted
from leadline.records import Op, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """A residual add: value ids of its skip and of its (largest) branch term."""

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
    """What the adds themselves multiply the terms by: `torch.add(y, x, alpha=a)` is y + a x."""


def find_sum(trace: Trace, flow: Flow, ops: Sequence[int], start: int, norms: frozenset[int]) -> Sum | None:
    """The residual add that ends the segment `ops` which starts behind op `start`; None if it does not end in one.

    A term is the skip if only neutral ops (layout, cast, dropout, scale, bias) lie between it and the start. Without
    one, a term with fewer weights than the others is a projected skip, as where a ResNet changes its width.
    """
    add = ops[-1]
    if trace.ops[add].kind != "add":
        return None
    inside = set(ops)
    factors = dict(_terms(trace, add, inside, flow))
    terms = list(factors)
    identity = [value for value in terms if _leads_straight_to(trace, value, start, flow)]
    branches = [value for value in terms if value not in identity]
    weights = {value: _made_by(trace, value, inside) for value in branches}
    if not any(trace.ops[op].kind in HEAVY or op in norms for made in weights.values() for op in made):
        return None
    projected = not identity
    if projected:
        counts = {value: sum(is_weighted(trace.ops[op]) for op in made) for value, made in weights.items()}
        skip = min(counts, key=counts.__getitem__)
        branches = [value for value in branches if counts[value] > counts[skip]]
        if not branches or counts[skip] > 1:
            return None
        identity = [skip]
    branch = max(branches, key=lambda value: len(weights[value]))
    return Sum(
        add=add,
        skip=identity[0],
        branch=branch,
        projected=projected,
        norm_before=_norm_before(trace, weights[branch], norms),
        norm_inside=_norm_at_output(trace, branch, weights[branch], norms),
        start=start,
        skip_factor=factors[identity[0]],
        branch_factor=factors[branch],
    )


def _terms(trace: Trace, add: int, inside: set[int], flow: Flow) -> Iterator[tuple[int, float]]:
    """What is summed, and by what the sum multiplies it: nested adds, as in `x + attention + mlp`, are one sum."""
    for position, value in enumerate(trace.ops[add].inputs):
        factor = _alpha(trace.ops[add]) if position else 1.0
        maker = trace.values[value].op
        if maker is not None and maker in inside and trace.ops[maker].kind == "add":
            yield from ((term, factor * inner) for term, inner in _terms(trace, maker, inside, flow))
        elif (maker in inside or maker in flow.parents) if maker is not None else value == flow.source.id:
            yield value, factor


def _alpha(op: Op) -> float:
    found = argument(op, "alpha", 2, 1.0) if op.name in ("add", "sub") else 1.0
    return float(found) if isinstance(found, int | float) else 1.0


def _leads_straight_to(trace: Trace, value: int, start: int, flow: Flow) -> bool:
    while True:
        maker = trace.values[value].op
        if maker is None:
            return start == ROOT and value == flow.source.id
        if maker == start:
            return True
        signals = [each for each in trace.ops[maker].inputs if _is_signal(trace, each, flow)]
        if trace.ops[maker].kind not in NEUTRAL or len(signals) != 1 or maker <= start:
            return False
        value = signals[0]


def _is_signal(trace: Trace, value: int, flow: Flow) -> bool:
    maker = trace.values[value].op
    return maker in flow.parents if maker is not None else value == flow.source.id


def _made_by(trace: Trace, value: int, inside: set[int]) -> list[int]:
    """Ops of the segment that this value depends on, in execution order."""
    found: set[int] = set()
    todo = [value]
    while todo:
        maker = trace.values[todo.pop()].op
        if maker is not None and maker in inside and maker not in found:
            found.add(maker)
            todo.extend(trace.ops[maker].inputs)
    return sorted(found)


def _norm_before(trace: Trace, made: Sequence[int], norms: frozenset[int]) -> bool:
    """A norm comes before the branch's first weight."""
    first = next((op for op in made if is_weighted(trace.ops[op])), None)
    return any(op in norms and (first is None or op < first) for op in made)


def _norm_at_output(trace: Trace, value: int, made: Sequence[int], norms: frozenset[int]) -> bool:
    """A norm comes after the branch's last weight, with nothing but neutral ops behind it."""
    if not any(is_weighted(trace.ops[op]) for op in made):
        return False
    for op in reversed(made):
        if op in norms:
            return True
        if trace.ops[op].kind not in NEUTRAL:
            return False
    return False
