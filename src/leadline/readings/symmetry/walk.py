"""One pass over the ops of a trace: the scale of every value as an unknown, and the equations between them.

A value of degree $d$ is multiplied by $e^{d}$ when the parameters are rescaled. The batch, buffers and constants cannot
change: degree nought. A tensor of zeros, or without elements, fits any degree: `ANY`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from leadline.ops.arguments import value_of
from leadline.readings.symmetry.system import ZERO, Number, System
from leadline.records import Op, Trace, Value

Degree = int | None
Degrees = tuple[Degree, ...]
"""Of the outputs of one op, where these differ."""
ANY: Degree = None  # of a tensor of zeros, which no factor changes

THROUGH_A_VIEW = "changed in place through a view"  # as the recorder writes it


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """A small number added to keep a division finite: the scale in front of it is free only as far as it is large."""

    op: int
    eps: float
    value: int
    """The value whose size it is compared with."""
    squared: bool
    """It is added to a square: then that value's variance counts, and otherwise its mean."""
    degree: Degree
    """Of the signal in front."""


class Walk:
    """The unknowns and equations of one trace, as they come together."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.system = System()
        self.ops = _live_ops(trace)
        self.readers: dict[int, list[int]] = defaultdict(list)
        for op in self.ops:
            for value in op.inputs:
                self.readers[value].append(op.index)
        read = {name for op in self.ops for name in op.params}
        free = [each for each in trace.parameters if each.trainable and each.name in read]
        self.parameters = {each.name: self.system.unknown() for each in free}
        self.subtracted: set[int] = set()
        """Values whose shift is lost (see `shifts`)."""
        self.statistics: dict[str, int] = {}
        """Running statistics of norms in training mode, by buffer name: they follow the signal, but none reads them."""
        self.held: list[str] = []
        """Ops whose inputs are held fixed because nobody worked out better."""
        self.guards: list[Guard] = []
        self._degrees: list[Degree] = [self._of_source(value) for value in trace.values]

    def value(self, argument: Any) -> Value | None:
        """The value that a recorded argument is; None if it is none."""
        number = value_of(argument)
        return None if number is None else self.trace.values[number]

    def of(self, argument: Any) -> Degree:
        """The degree of a recorded argument: a tensor's own; zero and infinity fit any, other numbers are constants."""
        number = value_of(argument)
        if number is not None:
            return self._degree(number)
        return ANY if _fits_any_scale(argument) else ZERO

    def tensors(self, op: Op) -> list[int]:
        """The values that an op was called with, in order. An op that nobody called (a foreign one) has its inputs."""
        found = [number for each in _flat((op.args, op.kwargs)) if (number := value_of(each)) is not None]
        return found or list(op.inputs)

    def floats(self, op: Op) -> list[Degree]:
        """Degrees of the floating-point tensors an op was called with."""
        return [self._degree(each) for each in self.tensors(op) if self.trace.values[each].floating]

    def agree(self, degrees: Iterable[Degree]) -> Degree:
        """These must scale alike; returns how."""
        known = [each for each in degrees if each is not None]
        for other in known[1:]:
            self.system.same(known[0], other)
        return known[0] if known else ANY

    def forbid(self, degrees: Iterable[Degree]) -> Degree:
        """None of these may scale; returns nought."""
        self.agree([ZERO, *degrees])
        return ZERO

    def product(self, *factors: tuple[Degree, Number]) -> Degree:
        """The degree of a product of powers: (degree, power) each."""
        form: dict[int, Number] = {}
        for degree, power in factors:
            if degree is None:
                return ANY
            form[degree] = form.get(degree, 0) + power
        return self.system.combination(form)

    def write(self, op: Op, degrees: Degree | Degrees) -> None:
        """What an op made has this degree; a base that was written through a view keeps its own besides."""
        for place, output in enumerate(op.outputs):
            value = self.trace.values[output]
            degree = degrees[min(place, len(degrees) - 1)] if isinstance(degrees, tuple) else degrees
            if not value.floating:
                continue
            self._degrees[output] = degree
            if value.unobserved == THROUGH_A_VIEW:
                before = [
                    self._degrees[each] for each in op.inputs if self.trace.values[each].shape == value.shape
                ]
                self._degrees[output] = self.agree([degree, *before[-1:]])

    def _degree(self, number: int) -> Degree:
        return ANY if 0 in self.trace.values[number].shape else self._degrees[number]

    def _of_source(self, value: Value) -> Degree:
        if value.source == "parameter":
            return self.parameters.get(value.name, ZERO)
        empty = value.forward is not None and value.forward.zero_share == 1.0
        return ANY if value.source == "constant" and empty else ZERO


Scaling = Callable[[Walk, Op], Degree | Degrees]
"""A rule: adds what an op demands to the equations and returns the degree of what it makes."""


def _live_ops(trace: Trace) -> tuple[Op, ...]:
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


def _flat(tree: Any) -> Iterable[Any]:
    if isinstance(tree, Mapping):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        yield tree
        return
    for each in tree:
        yield from _flat(each)
