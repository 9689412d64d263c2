"""What a moment rule is: a pure function from the signals an op reads to those it writes, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from leadline.ops.arguments import argument, sequence, value_of
from leadline.records import Op, Trace, Value
from leadline.theory.field import Field, broadcast
from leadline.theory.gradient import Terms
from leadline.theory.signal import Signal, Sources, moved

Back = Callable[[Sequence[Terms]], Mapping[int, Terms]]
"""From the gradients of the outputs to contributions to the gradients of the inputs, by value id."""


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule says of one op: the signals of its outputs (None: nothing), and how gradients come back."""

    outputs: tuple[Signal | None, ...]
    back: Back


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One executed op, with what is known of the tensors it read."""

    op: Op
    trace: Trace
    signals: Mapping[int, Signal]
    sources: Sources
    facts: dict[int, float] = msgspec.field(default_factory=dict)
    """Of integer values: the share of elements that a loss is told to ignore."""
    causal: frozenset[int] = frozenset()
    """Masks that hide what comes later."""

    def argument(self, name: str, position: int, default: Any = None) -> Any:
        return argument(self.op, name, position, default)

    def sequence(self, name: str, position: int) -> tuple[Any, ...] | None:
        return sequence(self.op, name, position)

    def id(self, name: str, position: int) -> int | None:
        return value_of(self.argument(name, position))

    def signal(self, name: str, position: int) -> Signal | None:
        found = self.id(name, position)
        return None if found is None else self.signals.get(found)

    def read(self, position: int = 0) -> tuple[int, Signal]:
        """The tensor operand at that place in the order of reading; refuses if nothing is known of it."""
        value = self.op.inputs[position]
        if value not in self.signals:
            raise UnpredictableError(f"nothing is known of what {self.op.name} reads")
        return value, self.signals[value]

    @property
    def output(self) -> Value:
        return self.trace.values[self.op.outputs[0]]

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(self.trace.values[value].shape for value in self.op.outputs)

    def value(self, number: int) -> Value:
        return self.trace.values[number]


class UnpredictableError(Exception):
    """A rule does not cover this use of its op: prediction stops here, or goes on from what was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A moment rule: for which ops it is, what it does, and under which assumption it holds."""

    names: frozenset[str]
    run: Callable[[Call], Transfer]
    assumes: str


def moment_rule(names: str, *, assumes: str = "") -> Callable[[Callable[[Call], Transfer]], Rule]:
    """Make a Rule of the function below, for these canonical op names. Nothing is registered."""

    def make(run: Callable[[Call], Transfer]) -> Rule:
        return Rule(names=frozenset(names.split()), run=run, assumes=assumes)

    return make


def one(signal: Signal | None, back: Back) -> Transfer:
    """A transfer with one output."""
    return Transfer(outputs=(signal,), back=back)


def arrangement(call: Call, forth: Callable[[Field], Field], back: Callable[[Field], Field]) -> Transfer:
    """An op that moves elements: the field in other axes, the same source."""
    value, x = call.read()

    def pull(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        return {value: tuple(replace(term, field=back(term.field)) for term in grads[0])}

    return one(moved(x, forth), pull)


def fitted(signal: Signal, shape: tuple[int, ...]) -> Signal:
    """The signal expanded to a shape."""
    return signal if signal.field.shape == shape else moved(signal, lambda field: broadcast(field, shape))
