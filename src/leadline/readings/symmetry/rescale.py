"""The symmetries of a live model, and copies of it that are shrunk or balanced without changing the function."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, exp, floor, log, log10
from numbers import Real
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from leadline.case import Case, Inputs, describe
from leadline.errors import InputError
from leadline.readings.limits import MAX_OUTPUT_CHANGE
from leadline.readings.symmetry.cone import combine_generators, find_balance, find_descent, find_even_descent
from leadline.readings.symmetry.exact_model import ExactModel, default_loss, open_exact_model, unfrozen
from leadline.readings.symmetry.reading import list_names, read_symmetry
from leadline.readings.symmetry.verification import Verification, relative_change, verify
from leadline.records import EpsSite, Generator, Symmetry, Trace
from leadline.tracer.inputs import check_has_values, unwrap
from leadline.tracer.names import index_model
from leadline.tracer.trace import trace
from leadline.tracer.values import detached_copies

T = TypeVar("T")

# Heuristic: the generators that fit on a screen; the rest are counted.
MAX_SHOWN_GENERATORS = 12

# Heuristic: bisections of the logarithm of the factor; they leave 0.06 % of a factor of 0.1, 0.2 % of one of 1e-4.
MAX_BISECTIONS = 12


@dataclass(frozen=True, slots=True)
class Symmetries:
    """All free rescalings of a model's parameters: `record` holds them as data, `verify` confirms them on the model."""

    record: Symmetry
    case: Case

    @property
    def dimension(self) -> int:
        """The number of independent free rescalings."""
        return self.record.dimension

    @property
    def generators(self) -> tuple[Generator, ...]:
        """A basis of the free rescalings: exponents by parameter name, and a description."""
        return self.record.generators

    @property
    def invariant(self) -> tuple[str, ...]:
        """Parameters that can be rescaled alone."""
        return self.record.invariant

    @property
    def inert(self) -> tuple[str, ...]:
        """Parameters that can shrink to zero while no decayed one grows: weight decay on them does nothing."""
        return self.record.inert

    @property
    def free_share(self) -> float | None:
        """The share of the sum of squares that a free rescaling removes."""
        return self.record.free_share

    @property
    def eps(self) -> tuple[EpsSite, ...]:
        """Norms whose input can be rescaled, as far as their eps allows."""
        return self.record.eps

    def verify(self, *, seed: int = 0, passes: int | None = None) -> Verification:
        """Confirm the group by numbers, in double precision: rescale the model, then measure all free directions.

        The second part takes about as many passes as there are parameter tensors; with fewer `passes` it is not known
        whether the group is complete. The model is left unchanged.
        """
        return verify(self.record, self.case, seed=seed, passes=passes)

    def __str__(self) -> str:
        share = "" if self.free_share is None else f" ({self.free_share:.0%} of the sum of squares is free)"
        head = f"{self.dimension} free rescalings; {len(self.inert)} of {len(self.record.tensors)} tensors inert{share}"
        shown = [f"  {each.says}" for each in self.generators[:MAX_SHOWN_GENERATORS]]
        more = (
            [f"  and {self.dimension - MAX_SHOWN_GENERATORS} more"]
            if self.dimension > MAX_SHOWN_GENERATORS
            else []
        )
        return "\n".join([head, *shown, *more])


def find_symmetry(case: Case, *, in_front_of_norms: bool = True, only_in_training: bool = True) -> Symmetry:
    """Trace the case and read its symmetry (see `read_symmetry`); a model without parameters has no generators."""
    if isinstance(case.model, nn.Module) and not any(True for _ in case.model.parameters()):
        return Symmetry(generators=(), tensors=(), decayed=False, penalty=0.0, least=0.0, eps=(), held=())
    return read_symmetry(
        trace_function(case), in_front_of_norms=in_front_of_norms, only_in_training=only_in_training
    )


def trace_function(case: Case) -> Trace:
    """The trace of a case; without a loss all outputs count, and frozen parameters count as trainable."""
    if not isinstance(case.model, nn.Module):
        return trace(case.model, case.inputs)  # raises an error that says what is wrong with the model
    has_loss = case.loss is not None
    with unfrozen(case.model):
        return trace(
            case.model,
            case.inputs,
            case.targets if has_loss else None,
            case.loss if has_loss else default_loss,
            case.optimizer,
        )


class EpsLimit(UserWarning):
    """`leadline.shrink` stopped above the requested factor, because the eps of a norm allows no less."""

    def __init__(self, *, requested: float, reached: float, drift: float, tolerance: float) -> None:
        self.requested, self.reached, self.drift = requested, reached, drift
        super().__init__(
            f"shrunk by {_rounded_up(reached)} instead of {requested:g}: the outputs differ by {drift:.2g}, and would "
            f"differ by more than the {tolerance:g} allowed if the input of a norm came closer to its eps; "
            "lower the eps of the norms, or pass a larger tolerance"
        )


def shrunk_copy(
    model: nn.Module, inputs: Inputs, factor: float, *, tolerance: float = MAX_OUTPUT_CHANGE
) -> nn.Module:
    """A copy that computes the same with inert parameters multiplied by `factor`, or as near to it as eps allows.

    Inert parameters are those that can shrink while no other grows; all others keep their values. All inert ones are
    multiplied by `factor` if possible; where two of them multiply each other, by powers of the factor between it and
    one. Running statistics are rescaled too, so that training and evaluation both stay the same. The relative change
    of the outputs on `inputs`, in the model's current mode, is measured. Where it would exceed `tolerance`, because
    the eps of a norm is no longer small compared with its input, the copy stops at the smallest factor that is
    allowed, and a warning, `EpsLimit`, states that factor and the change. Raises `InputError` if nothing can shrink.
    """
    requested = _check_factor(factor)
    check_has_values(model)
    case = Case(model, inputs)
    symmetry = find_symmetry(case, only_in_training=False)
    direction = find_even_descent(
        [each.exponents for each in symmetry.generators], {each.name for each in symmetry.tensors}
    )
    _check_something_shrinks(symmetry, direction)
    reached, drift = _with_exact_model(
        case, lambda exact: _smallest_factor(exact, symmetry, direction, requested, tolerance)
    )
    if reached > requested:
        limit = EpsLimit(requested=requested, reached=reached, drift=drift, tolerance=tolerance)
        warnings.warn(limit, stacklevel=4)  # the caller of `leadline.shrink`, which is shielded
    return _rescaled_copy(model, symmetry, _times(direction, reached))


def _check_factor(factor: float) -> float:
    number = isinstance(factor, Real) and not isinstance(factor, bool)
    if not (number and 0 < factor <= 1):
        raise InputError(
            expected="a factor above 0, and at most 1",
            got=str(factor) if number else describe(factor),
            fix="pass, for instance, factor=0.5",
        )
    return float(factor)


def _check_something_shrinks(symmetry: Symmetry, direction: Mapping[int, Any]) -> None:
    """Raise `InputError` if no factor would make the copy smaller."""
    inert = [each for each in symmetry.tensors if each.inert]
    if direction and any(each.norm is None or each.norm > 0 for each in inert):
        return
    if direction:
        got = f"{list_names(each.name for each in inert)} can shrink, but are zero already"
    else:
        got = f"{symmetry.dimension} free rescalings, each of which makes some parameter grow"
    raise InputError(
        expected="a model with nonzero parameters that can shrink while no other grows",
        got=got,
        fix="use leadline.balance(model, inputs) for the copy of smallest norm",
    )


def _times(direction: Mapping[int, Any], factor: float) -> dict[int, float]:
    """How often to apply each generator so that what shrinks is multiplied by `factor`."""
    return {index: -log(factor) * float(times) for index, times in direction.items()}


def _smallest_factor(
    exact: ExactModel, symmetry: Symmetry, direction: Mapping[int, Any], factor: float, tolerance: float
) -> tuple[float, float]:
    """The factor, or the smallest one above it at which the outputs change by at most `tolerance`; and their change."""
    before = _outputs(exact, symmetry, {})
    drift = relative_change(before, _outputs(exact, symmetry, _times(direction, factor)))
    if drift <= tolerance:
        return factor, drift
    low, high, drift = log(factor), 0.0, 0.0
    for _ in range(MAX_BISECTIONS):
        middle = (low + high) / 2
        change = relative_change(before, _outputs(exact, symmetry, _times(direction, exp(middle))))
        if change <= tolerance:
            high, drift = middle, change
        else:
            low = middle
    return exp(high), drift


def _rounded_up(number: float) -> str:
    """Round up to four digits, so that the printed factor is one that is allowed."""
    digits = 3 - floor(log10(number))
    return f"{ceil(number * 10**digits) / 10**digits:.4g}"


def balanced_copy(model: nn.Module, inputs: Inputs, *, tolerance: float = MAX_OUTPUT_CHANGE) -> nn.Module:
    """A copy that computes the same, with the smallest sum of squares of all parameters that are not inert.

    Inert parameters have no minimum: they keep their values, or become smaller if others need it; use `shrink` for
    them. If the outputs on `inputs` would change by more than `tolerance`, because the eps of a norm is no longer
    small compared with its input, the scales before norms stay, and the rest is balanced.
    """
    check_has_values(model)
    case = Case(model, inputs)
    symmetry = find_symmetry(case, only_in_training=False)
    moves = _balancing_moves(symmetry)
    drift = _with_exact_model(
        case,
        lambda exact: relative_change(_outputs(exact, symmetry, {}), _outputs(exact, symmetry, moves)),
    )
    if drift > tolerance:
        symmetry = find_symmetry(case, in_front_of_norms=False, only_in_training=False)
        moves = _balancing_moves(symmetry)
    return _rescaled_copy(model, symmetry, moves)


def _balancing_moves(symmetry: Symmetry) -> dict[int, float]:
    """How often to apply each generator to reach the smallest sum of squares; inert parameters shrink as needed."""
    vectors = [each.exponents for each in symmetry.generators]
    squares = {each.name: (each.norm or 0.0) ** 2 for each in symmetry.tensors}
    steps = find_descent(vectors, squares)
    inert = {name: each for name, each in combine_generators(vectors, steps).items() if each < 0}
    moves = find_balance(vectors, {name: each for name, each in squares.items() if name not in inert})
    grown = combine_generators(vectors, moves)
    needed = max((grown.get(name, 0.0) / -float(each) for name, each in inert.items()), default=0.0)
    return {
        index: moves.get(index, 0.0) + max(needed, 0.0) * float(steps.get(index, 0))
        for index in range(len(vectors))
    }


def _with_exact_model(case: Case, measure: Callable[[ExactModel], T]) -> T:
    """Measure the model in double precision, or in its own where it has kernels that refuse another."""
    try:
        with open_exact_model(case) as exact:
            return measure(exact)
    except Exception:
        with open_exact_model(case, is_wide=False) as exact:
            return measure(exact)


def _outputs(exact: ExactModel, symmetry: Symmetry, moves: Mapping[int, float]) -> list[Tensor]:
    """The outputs of the rescaled model, with every eps in place."""
    exponents = combine_generators([each.exponents for each in symmetry.generators], moves)
    moved = {
        each.name: exact.start[each.name] * exp(exponents.get(each.name, 0.0)) for each in symmetry.tensors
    }
    return exact.run(moved, frozenset(), lambda outputs: [each.detach().clone() for each in outputs])


def _rescaled_copy(model: nn.Module, symmetry: Symmetry, moves: Mapping[int, float]) -> nn.Module:
    """A copy of the model with parameters and running statistics multiplied."""
    rescaled = _deep_copy(unwrap(model))
    model_index = index_model(rescaled)
    tensors: dict[str, Any] = {named.names[0]: named.item for named in model_index.parameters.values()}
    tensors |= {named.names[0]: named.item for named in model_index.buffers.values()}
    exponents = combine_generators([each.exponents for each in symmetry.generators], moves)
    exponents |= combine_generators([each.statistics for each in symmetry.generators], moves)
    with torch.no_grad():
        for name, exponent in exponents.items():
            tensors[name].mul_(exp(exponent))
    return rescaled


def _deep_copy(model: nn.Module) -> nn.Module:
    """A deep copy without deep recursion: inner modules are copied before the modules that contain them.

    Results of earlier passes that modules store, as weight norm and pruning do, lose their graph. Objects that nobody
    can copy, such as locks and generators, are shared with the model, and a warning names them.
    """
    index = index_model(model)
    modules = index.modules.values()
    buffers = [named.item for named in index.buffers.values()]
    memo = detached_copies(model)
    memo |= {id(each): each.detach().clone() for each in buffers if each.layout is not torch.strided}
    shared = []
    for named in modules:
        for attribute, value in vars(named.item).items():
            if attribute in _OF_EVERY_MODULE or isinstance(value, Tensor):
                continue
            if not _can_copy(value, memo):
                memo[id(value)] = value
                shared.append(f"{named.names[0]}.{attribute}".lstrip("."))
    if shared:
        warnings.warn(
            f"the copy shares {list_names(shared)} with the model, because copy.deepcopy refuses them",
            stacklevel=5,  # the caller of `leadline.balance` or `leadline.shrink`
        )
    for named in reversed(list(modules)):
        copy.deepcopy(named.item, memo)
    return copy.deepcopy(model, memo)


_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def _can_copy(value: Any, known: dict[int, Any]) -> bool:
    """Whether `copy.deepcopy` can copy an attribute of a module; modules and tensors in it are not copied to see it."""
    memo = {id(each): each for each in tree_leaves(value) if isinstance(each, Tensor | nn.Module)}
    try:
        copy.deepcopy(value, known | memo)
    except Exception:
        return False
    return True
