"""What a moment rule is: a pure function from the signals an op reads to those it writes, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from leadline.ops.arguments import argument, sequence, value_of
from leadline.readings.theory.field import RandomField, broadcast
from leadline.readings.theory.gradient import Terms
from leadline.readings.theory.signal import Signal, Sources, moved
from leadline.records import Op, Trace, Value

Back = Callable[[Sequence[Terms]], Mapping[int, Terms]]
"""From the gradients of the outputs to contributions to the gradients of the inputs, by value id."""


class MomentMap(msgspec.Struct, frozen=True, kw_only=True):
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
class MomentRule:
    """How moments pass through the ops whose row of `leadline.ops.table` names this rule."""

    name: str
    apply: Callable[[Call], MomentMap]
    assumes: str
    """The assumption under which the rule holds."""


def moment_rule(*, assumes: str = "") -> Callable[[Callable[[Call], MomentMap]], MomentRule]:
    """Decorator that makes a `MomentRule` of a function and gives it the function's name."""

    def decorate(apply: Callable[[Call], MomentMap]) -> MomentRule:
        return MomentRule(name=apply.__name__, apply=apply, assumes=assumes)

    return decorate


def one(signal: Signal | None, back: Back) -> MomentMap:
    """A transfer with one output."""
    return MomentMap(outputs=(signal,), back=back)


def arrangement(
    call: Call, forth: Callable[[RandomField], RandomField], back: Callable[[RandomField], RandomField]
) -> MomentMap:
    """An op that moves elements: the field in other axes, the same source."""
    value, x = call.read()

    def pull(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        return {value: tuple(replace(term, field=back(term.field)) for term in grads[0])}

    return one(moved(x, forth), pull)


def fitted(signal: Signal, shape: tuple[int, ...]) -> Signal:
    """The signal expanded to a shape."""
    return signal if signal.field.shape == shape else moved(signal, lambda field: broadcast(field, shape))


# What the trace tells beside statistics: which values carry a signal, need a gradient, or hold ignored labels.

IGNORED = -100  # the label that PyTorch's losses leave out by default


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalFacts:
    """By value id."""

    live: frozenset[int]
    """Depends on the batch or on a parameter."""
    trained: frozenset[int]
    """Has a gradient: depends on a trainable parameter by a way that gradients go."""
    ignored: dict[int, float]
    """Of labels: the share that a loss leaves out."""
    causal: frozenset[int]
    """Made by comparing positions or by cutting a triangle out: a mask that hides what comes later."""


def read_signal_facts(trace: Trace) -> SignalFacts:
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
    return SignalFacts(
        live=frozenset(live), trained=frozenset(trained), ignored=ignored, causal=frozenset(causal)
    )


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
