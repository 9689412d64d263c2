"""`leadline.shrink` and `leadline.balance`: copies of a model that compute the same with smaller parameters."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from math import exp, log
from typing import Any

import torch
from torch import nn

from leadline.case import Case, Inputs
from leadline.errors import InputError
from leadline.records import Symmetry
from leadline.symmetry.cone import shrinking, total
from leadline.symmetry.confirm import relative_change
from leadline.symmetry.exact import Borrowed, borrow
from leadline.symmetry.live import trace_function
from leadline.symmetry.penalty import balancing
from leadline.symmetry.reading import read_symmetry
from leadline.tracing import lend
from leadline.tracing.census import take_census

TOLERATED = (
    1e-3  # ours: relative change of the outputs that "the same function" may have, where a norm's eps bites
)
HALVINGS = (
    20  # ours: of the interval in which the smallest factor is looked for; leaves it to one part in 10^5
)


def shrink(model: nn.Module, inputs: Inputs, factor: float, *, tolerance: float = TOLERATED) -> nn.Module:
    """A copy that computes the same, with every inert parameter multiplied by `factor` or something above it.

    Inert are the parameters that can shrink while none grows; all others keep their values. Running statistics are
    rescaled along. The change of the outputs on `inputs` is measured; where it exceeds `tolerance`, because a norm's
    eps is no longer small beside what it is added to, the factor is refused and the smallest possible one is named.
    """
    if not 0 < factor <= 1:
        raise InputError(
            expected="a factor between 0 and 1", got=str(factor), fix="pass, for instance, factor=0.1"
        )
    found = read_symmetry(trace_function(Case(model, inputs)))
    vectors = [each.exponents for each in found.generators]
    steps = shrinking(vectors, {each.name for each in found.tensors})
    deepest = -min(total(vectors, steps).values(), default=0)
    if not deepest:
        raise InputError(
            expected="a model with parameters that can shrink while none grows",
            got=f"{found.dimension} free rescalings, each of which grows something",
            fix="leadline.balance(model, inputs) gives the copy of least norm",
        )
    direction = {index: float(often / deepest) for index, often in steps.items()}
    moves = {index: -log(factor) * often for index, often in direction.items()}
    with borrow(Case(model, inputs)) as lent:
        if _drift(lent, found, moves) > tolerance:
            raise _beyond_eps(lent, found, direction, factor, tolerance)
    return _moved(model, found, moves)


def balance(model: nn.Module, inputs: Inputs, *, tolerance: float = TOLERATED) -> nn.Module:
    """A copy that computes the same, with the least sum of squares that rescaling can reach.

    Inert parameters (see `shrink`) have no least: they are left as they are, or smaller if others need it. If outputs
    on `inputs` would change by more than `tolerance`, because a norm's eps is no longer small beside what it is added
    to, the scale in front of norms is left alone, and the rest is balanced.
    """
    case = Case(model, inputs)
    seen = trace_function(case)
    found = read_symmetry(seen)
    moves = _least(found)
    with borrow(case) as lent:
        if _drift(lent, found, moves) > tolerance:
            found = read_symmetry(seen, in_front_of_norms=False)
            moves = _least(found)
    return _moved(model, found, moves)


def _least(found: Symmetry) -> dict[int, float]:
    """How often to take each generator: to the least of what has one, with inert parameters pushed down as needed."""
    vectors = [each.exponents for each in found.generators]
    squares = {each.name: (each.norm or 0.0) ** 2 for each in found.tensors}
    steps = shrinking(vectors, squares)
    inert = {name: each for name, each in total(vectors, steps).items() if each < 0}
    moves = balancing(vectors, {name: each for name, each in squares.items() if name not in inert})
    grown = total(vectors, moves)
    needed = max((grown.get(name, 0.0) / -float(each) for name, each in inert.items()), default=0.0)
    return {
        index: moves.get(index, 0.0) + max(needed, 0.0) * float(steps.get(index, 0))
        for index in range(len(vectors))
    }


def _drift(lent: Borrowed, found: Symmetry, moves: Mapping[int, float]) -> float:
    """Change of the outputs, with every eps in place."""
    start = {each.name: lent.parameters[each.name].data.clone() for each in found.tensors}
    exponents = total([each.exponents for each in found.generators], moves)
    moved = {name: value * exp(exponents.get(name, 0.0)) for name, value in start.items()}
    before, after = (
        lent.run(values, frozenset(), lambda outputs: [each.detach().clone() for each in outputs])
        for values in (start, moved)
    )
    return relative_change(before, after)


def _beyond_eps(
    lent: Borrowed, found: Symmetry, direction: Mapping[int, float], factor: float, tolerance: float
) -> InputError:
    low, high = log(factor), 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        moves = {index: -middle * often for index, often in direction.items()}
        low, high = (low, middle) if _drift(lent, found, moves) <= tolerance else (middle, high)
    return InputError(
        expected=f"a factor at which the outputs change by no more than {tolerance:g}",
        got=f"{factor:g}: the eps of a norm is no longer small beside the signal in front of it",
        fix=f"the smallest factor here is about {exp(high):.2g}; set the norms' eps lower, or allow more tolerance",
    )


def _moved(model: nn.Module, found: Symmetry, moves: Mapping[int, float]) -> nn.Module:
    """The copy, with parameters and running statistics multiplied."""
    made = copied(lend.unwrap(model))
    census = take_census(made)
    tensors: dict[str, Any] = {named.names[0]: named.item for named in census.parameters.values()}
    tensors |= {named.names[0]: named.item for named in census.buffers.values()}
    exponents = total([each.exponents for each in found.generators], moves)
    exponents |= total([each.statistics for each in found.generators], moves)
    with torch.no_grad():
        for name, exponent in exponents.items():
            tensors[name].mul_(exp(exponent))
    return made


def copied(model: nn.Module) -> nn.Module:
    """A deep copy without deep recursion: innermost modules come first, so that the outer ones find theirs done."""
    memo: dict[int, Any] = {}
    for named in reversed(list(take_census(model).modules.values())):
        copy.deepcopy(named.item, memo)
    return copy.deepcopy(model, memo)
