"""The scale equations of one trace: the scale degree of every value as an unknown, with the equations between them.

A value of degree $d$ is multiplied by $e^{d}$ when the parameters are rescaled. The batch, buffers and constants cannot
change: their degree is zero. A tensor of zeros, or without elements, fits any degree: `ANY`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from leadline.ops.arguments import value_of
from leadline.readings.symmetry.system import ZERO, Number, System
from leadline.records import Op, Trace, Value
from leadline.records.trace import CHANGED_THROUGH_VIEW

Degree = int | None
"""The number of an unknown of the system, or `ANY`."""
Degrees = tuple[Degree, ...]
"""Degrees of the outputs of one op, where they differ."""
ANY: Degree = None
"""The degree of a tensor of zeros, which no factor changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsGuard:
    """A small number that keeps a division finite: the scale before it is free only while the signal is larger."""

    op: int
    eps: float
    value: int
    """Id of the value that eps is compared with."""
    squared: bool
    """Whether eps is added to a square: then the variance of that value counts, and otherwise its mean."""
    degree: Degree
    """Degree of the signal before the guard."""


class ScaleEquations:
    """The unknowns and equations of one trace, filled op by op."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.system = System()
        self.ops = _ops_of_loss(trace)
        self.readers: dict[int, list[int]] = defaultdict(list)
        for op in self.ops:
            for value in op.inputs:
                self.readers[value].append(op.index)
        used = {name for op in self.ops for name in op.params}
        free = [each for each in trace.parameters if each.trainable and each.name in used]
        self.parameters = {each.name: self.system.unknown() for each in free}
        self.subtracted: set[int] = set()
        """Values whose shift is lost (see `lost_biases`)."""
        self.statistics: dict[str, int] = {}
        """Running statistics of norms in training mode, by buffer name: they follow the signal; no op reads them."""
        self.held: list[str] = []
        """Ops without a scale rule, whose inputs are held fixed."""
        self.guards: list[EpsGuard] = []
        self._degrees: list[Degree] = [self._source_degree(value) for value in trace.values]

    def value(self, argument: Any) -> Value | None:
        """The value that a recorded argument refers to; None if it is not a tensor."""
        number = value_of(argument)
        return None if number is None else self.trace.values[number]

    def of(self, argument: Any) -> Degree:
        """The degree of a recorded argument; zero and infinity fit any degree, other numbers are constants."""
        number = value_of(argument)
        if number is not None:
            return self._degree(number)
        return ANY if _fits_any_scale(argument) else ZERO

    def tensors(self, op: Op) -> list[int]:
        """Ids of the values an op was called with, in order; an op recorded without arguments has its inputs."""
        numbers = [value_of(each) for each in _leaves((op.args, op.kwargs))]
        return [number for number in numbers if number is not None] or list(op.inputs)

    def floats(self, op: Op) -> list[Degree]:
        """Degrees of the floating-point tensors an op was called with."""
        return [self._degree(each) for each in self.tensors(op) if self.trace.values[each].floating]

    def agree(self, degrees: Iterable[Degree]) -> Degree:
        """Demand that these scale alike; returns their common degree."""
        known = [each for each in degrees if each is not None]
        for other in known[1:]:
            self.system.same(known[0], other)
        return known[0] if known else ANY

    def forbid(self, degrees: Iterable[Degree]) -> Degree:
        """Demand that none of these scale; returns the degree zero."""
        self.agree([ZERO, *degrees])
        return ZERO

    def product(self, *factors: tuple[Degree, Number]) -> Degree:
        """The degree of a product of powers, given as (degree, power) pairs."""
        form: dict[int, Number] = {}
        for degree, power in factors:
            if degree is None:
                return ANY
            form[degree] = form.get(degree, 0) + power
        return self.system.combination(form)

    def write(self, op: Op, degrees: Degree | Degrees) -> None:
        """Set the degrees of an op's outputs; a tensor that was written through a view also keeps its old degree."""
        for place, output in enumerate(op.outputs):
            value = self.trace.values[output]
            degree = degrees[min(place, len(degrees) - 1)] if isinstance(degrees, tuple) else degrees
            if not value.floating:
                continue
            self._degrees[output] = degree
            if value.unobserved == CHANGED_THROUGH_VIEW:
                before = [
                    self._degrees[each] for each in op.inputs if self.trace.values[each].shape == value.shape
                ]
                self._degrees[output] = self.agree([degree, *before[-1:]])

    def _degree(self, number: int) -> Degree:
        return ANY if 0 in self.trace.values[number].shape else self._degrees[number]

    def _source_degree(self, value: Value) -> Degree:
        if value.source == "parameter":
            return self.parameters.get(value.name, ZERO)
        zero = value.forward is not None and value.forward.zero_share == 1.0
        return ANY if value.source == "constant" and zero else ZERO


ScaleRule = Callable[[ScaleEquations, Op], Degree | Degrees]
"""Adds what an op demands to the equations and returns the degree of its output."""


def _ops_of_loss(trace: Trace) -> tuple[Op, ...]:
    """The ops that the loss depends on; all of them if there is no loss."""
    if trace.loss_value is None:
        return trace.ops
    wanted, live = {trace.loss_value}, []
    for op in reversed(trace.ops):
        if not wanted.isdisjoint(op.outputs):
            live.append(op)
            wanted.update(op.inputs)
    return tuple(reversed(live))


def _fits_any_scale(argument: Any) -> bool:
    if argument is None:
        return True
    if isinstance(argument, str):
        return argument in ("Infinity", "-Infinity")
    return isinstance(argument, bool | int | float) and argument == 0


def _leaves(tree: Any) -> Iterable[Any]:
    if isinstance(tree, Mapping):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        yield tree
        return
    for each in tree:
        yield from _leaves(each)
