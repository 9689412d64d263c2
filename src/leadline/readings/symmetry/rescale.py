"""The symmetries of a live model, and copies of it that are shrunk or balanced without changing the function."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, exp, floor, log, log10
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from leadline.case import Case, Inputs, describe
from leadline.errors import InputError
from leadline.readings.symmetry.cone import combine_generators, find_balance, find_descent, find_even_descent
from leadline.readings.symmetry.exact_model import ExactModel, default_loss, open_exact_model, unfrozen
from leadline.readings.symmetry.reading import read_symmetry, summary
from leadline.readings.symmetry.verification import Verification, relative_change, verify
from leadline.records import EpsSite, Generator, Symmetry, Trace
from leadline.tracer.inputs import unwrap
from leadline.tracer.names import index_model
from leadline.tracer.trace import trace

SHOWN = 12  # ours: generators in the printed form


@dataclass(frozen=True, slots=True)
class Symmetries:
    """All free rescalings of a model's parameters. `record` is the part that is data; `verify` asks the model."""

    record: Symmetry
    case: Case

    @property
    def dimension(self) -> int:
        """How many independent free rescalings there are."""
        return self.record.dimension

    @property
    def generators(self) -> tuple[Generator, ...]:
        """A basis of them: exponents by parameter name, and the same in words."""
        return self.record.generators

    @property
    def invariant(self) -> tuple[str, ...]:
        """Parameters whose scale is free alone."""
        return self.record.invariant

    @property
    def inert(self) -> tuple[str, ...]:
        """Parameters that can shrink to nothing while none (that is decayed) grows: decay on them is inert."""
        return self.record.inert

    @property
    def free_share(self) -> float | None:
        """The share of the sum of squares that can be had for free."""
        return self.record.free_share

    @property
    def eps(self) -> tuple[EpsSite, ...]:
        """Norms in front of which the scale is free, as far as their eps allows."""
        return self.record.eps

    def verify(self, *, seed: int = 0, passes: int | None = None) -> Verification:
        """Confirm by numbers, in double precision: move along the group, and ask the gradients for the whole of it.

        The second takes about as many passes as there are parameter tensors; with fewer `passes` completeness is left
        open. The model is left as found.
        """
        return verify(self.record, self.case, seed=seed, passes=passes)

    def __str__(self) -> str:
        share = "" if self.free_share is None else f" ({self.free_share:.0%} of the sum of squares is free)"
        head = f"{self.dimension} free rescalings; {len(self.inert)} of {len(self.record.tensors)} tensors inert{share}"
        shown = [f"  {each.says}" for each in self.generators[:SHOWN]]
        more = [f"  and {self.dimension - SHOWN} more"] if self.dimension > SHOWN else []
        return "\n".join([head, *shown, *more])


def find_symmetry(case: Case, *, in_front_of_norms: bool = True, only_in_training: bool = True) -> Symmetry:
    """The record, as `read_symmetry` says; of a model without parameters, the group that moves nothing."""
    if isinstance(case.model, nn.Module) and not any(True for _ in case.model.parameters()):
        return Symmetry(generators=(), tensors=(), decayed=False, penalty=0.0, least=0.0, eps=(), held=())
    seen = trace_function(case)
    return read_symmetry(seen, in_front_of_norms=in_front_of_norms, only_in_training=only_in_training)


def trace_function(case: Case) -> Trace:
    """The trace of a case; one without a loss is judged by all that it returns, a frozen one as if it were not."""
    if not isinstance(case.model, nn.Module):
        return trace(case.model, case.inputs)  # says what is wrong with it
    lonely = case.loss is None
    with unfrozen(case.model):
        return trace(
            case.model,
            case.inputs,
            None if lonely else case.targets,
            default_loss if lonely else case.loss,
            case.optimizer,
        )


# `leadline.shrink` and `leadline.balance`: copies of a model that compute the same with smaller parameters.

MAX_OUTPUT_CHANGE = (
    1e-3  # ours: relative change of the outputs that "the same function" may have, where a norm's eps bites
)
HALVINGS = 12  # ours: of the logarithm of the factor; leaves 0.06 % of a factor of 0.1, 0.2 % of one of 1e-4


class EpsLimit(UserWarning):
    """`leadline.shrink` stopped above the factor that was asked for, because a norm's eps allows no less."""

    def __init__(self, *, asked: float, reached: float, drift: float, tolerance: float) -> None:
        self.asked, self.reached, self.drift = asked, reached, drift
        super().__init__(
            f"shrunk by {_rounded_up(reached)} instead of {asked:g}: outputs now differ by {drift:.2g}, and would by "
            f"more than the {tolerance:g} allowed if the eps of a norm came closer to the signal in front of it; "
            "lower the norms' eps, or pass a larger tolerance"
        )


def shrunk_copy(
    model: nn.Module, inputs: Inputs, factor: float, *, tolerance: float = MAX_OUTPUT_CHANGE
) -> nn.Module:
    """A copy that computes the same with inert parameters multiplied by `factor`, or as near to it as eps allows.

    Inert are the parameters that can shrink while none grows; all others keep their values. All are multiplied alike
    where that can be; where two of them multiply each other, by powers of the factor between it and one. Running
    statistics are rescaled along, so that training and evaluation both stay what they are. The relative change of the
    outputs on `inputs`, in the mode the model is in, is measured; where it would exceed `tolerance`, because a norm's
    eps is no longer small beside what it is added to, the copy stops at the smallest factor that is allowed, and a
    warning, `EpsLimit`, states that factor and the change. Raises `InputError` if nothing can shrink.
    """
    asked = _checked(factor)
    case = Case(model, inputs)
    found = find_symmetry(case, only_in_training=False)
    direction = find_even_descent(
        [each.exponents for each in found.generators], {each.name for each in found.tensors}
    )
    _check_something_shrinks(found, direction)
    with open_exact_model(case) as lent:
        reached, drift = _reach(lent, found, direction, asked, tolerance)
    if reached > asked:
        said = EpsLimit(asked=asked, reached=reached, drift=drift, tolerance=tolerance)
        warnings.warn(said, stacklevel=3)  # the caller of `leadline.shrink`
    return _moved(model, found, _times(direction, reached))


def _checked(factor: float) -> float:
    number = isinstance(factor, Real) and not isinstance(factor, bool)
    if not (number and 0 < factor <= 1):
        raise InputError(
            expected="a factor above 0, and at most 1",
            got=str(factor) if number else describe(factor),
            fix="pass, for instance, factor=0.5",
        )
    return float(factor)


def _check_something_shrinks(found: Symmetry, direction: Mapping[int, Any]) -> None:
    """Raise, in words, if the copy would be no smaller whatever the factor."""
    inert = [each for each in found.tensors if each.inert]
    if direction and any(each.norm is None or each.norm > 0 for each in inert):
        return
    raise InputError(
        expected="a model with parameters, other than zero, that can shrink while none grows",
        got=f"{summary(each.name for each in inert)} can, and are zero already"
        if direction
        else f"{found.dimension} free rescalings, each of which grows something",
        fix="there is nothing to shrink for free; leadline.balance(model, inputs) gives the copy of least norm "
        "where parameters can be traded against each other",
    )


def _times(direction: Mapping[int, Any], factor: float) -> dict[int, float]:
    return {index: -log(factor) * float(often) for index, often in direction.items()}


def _reach(
    lent: ExactModel, found: Symmetry, direction: Mapping[int, Any], factor: float, tolerance: float
) -> tuple[float, float]:
    """The factor, or the smallest above it at which outputs change by no more than tolerated; and their change."""
    before = _outputs(lent, found, {})
    drift = relative_change(before, _outputs(lent, found, _times(direction, factor)))
    if drift <= tolerance:
        return factor, drift
    low, high, drift = log(factor), 0.0, 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        change = relative_change(before, _outputs(lent, found, _times(direction, exp(middle))))
        if change <= tolerance:
            high, drift = middle, change
        else:
            low = middle
    return exp(high), drift


def _rounded_up(number: float) -> str:
    """To four digits, so that asking for what is printed is allowed."""
    digits = 3 - floor(log10(number))
    return f"{ceil(number * 10**digits) / 10**digits:.4g}"


def balanced_copy(model: nn.Module, inputs: Inputs, *, tolerance: float = MAX_OUTPUT_CHANGE) -> nn.Module:
    """A copy that computes the same, with the least sum of squares of all but the inert parameters.

    Inert ones have no least: they are left alone, or made smaller if others need it; `shrink` is for them. If outputs
    on `inputs` would change by more than `tolerance`, because a norm's eps is no longer small beside what it is added
    to, the scale in front of norms is left alone, and the rest is balanced.
    """
    case = Case(model, inputs)
    found = find_symmetry(case, only_in_training=False)
    moves = _least(found)
    with open_exact_model(case) as lent:
        drift = relative_change(_outputs(lent, found, {}), _outputs(lent, found, moves))
    if drift > tolerance:
        found = find_symmetry(case, in_front_of_norms=False, only_in_training=False)
        moves = _least(found)
    return _moved(model, found, moves)


def _least(found: Symmetry) -> dict[int, float]:
    """How often to take each generator: to the least of what has one, with inert parameters pushed down as needed."""
    vectors = [each.exponents for each in found.generators]
    squares = {each.name: (each.norm or 0.0) ** 2 for each in found.tensors}
    steps = find_descent(vectors, squares)
    inert = {name: each for name, each in combine_generators(vectors, steps).items() if each < 0}
    moves = find_balance(vectors, {name: each for name, each in squares.items() if name not in inert})
    grown = combine_generators(vectors, moves)
    needed = max((grown.get(name, 0.0) / -float(each) for name, each in inert.items()), default=0.0)
    return {
        index: moves.get(index, 0.0) + max(needed, 0.0) * float(steps.get(index, 0))
        for index in range(len(vectors))
    }


def _outputs(lent: ExactModel, found: Symmetry, moves: Mapping[int, float]) -> list[Tensor]:
    """What the moved model returns, with every eps in place."""
    exponents = combine_generators([each.exponents for each in found.generators], moves)
    moved = {each.name: lent.start[each.name] * exp(exponents.get(each.name, 0.0)) for each in found.tensors}
    return lent.run(moved, frozenset(), lambda outputs: [each.detach().clone() for each in outputs])


def _moved(model: nn.Module, found: Symmetry, moves: Mapping[int, float]) -> nn.Module:
    """The copy, with parameters and running statistics multiplied."""
    made = copied(unwrap(model))
    model_index = index_model(made)
    tensors: dict[str, Any] = {named.names[0]: named.item for named in model_index.parameters.values()}
    tensors |= {named.names[0]: named.item for named in model_index.buffers.values()}
    exponents = combine_generators([each.exponents for each in found.generators], moves)
    exponents |= combine_generators([each.statistics for each in found.generators], moves)
    with torch.no_grad():
        for name, exponent in exponents.items():
            tensors[name].mul_(exp(exponent))
    return made


def copied(model: nn.Module) -> nn.Module:
    """A deep copy without deep recursion: innermost modules come first, so that the outer ones find theirs done."""
    memo: dict[int, Any] = {}
    for named in reversed(list(index_model(model).modules.values())):
        copy.deepcopy(named.item, memo)
    return copy.deepcopy(model, memo)
