"""What a moment rule is: a pure function from the signals that an op reads to those it writes, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from leadline.ops.arguments import argument, sequence, value_of
from leadline.readings.theory.field import RandomField, broadcast
from leadline.readings.theory.gradient import Terms
from leadline.readings.theory.signal import Signal, Sources, rearranged
from leadline.records import Op, Trace, Value

Back = Callable[[Sequence[Terms]], Mapping[int, Terms]]
"""Maps the gradients of the outputs to contributions to the gradients of the inputs, by value id."""


class MomentMap(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a rule for one op: the signals of its outputs (None if unknown), and how gradients pass back."""

    outputs: tuple[Signal | None, ...]
    back: Back


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One executed op, with what is known about the tensors it reads."""

    op: Op
    trace: Trace
    signals: Mapping[int, Signal]
    sources: Sources
    ignored_shares: dict[int, float] = msgspec.field(default_factory=dict)
    """Share of the labels that a loss ignores, by value id."""
    causal: frozenset[int] = frozenset()
    """Ids of masks that hide later positions."""

    def argument(self, name: str, position: int, default: Any = None) -> Any:
        return argument(self.op, name, position, default)

    def sequence(self, name: str, position: int) -> tuple[Any, ...] | None:
        return sequence(self.op, name, position)

    def id(self, name: str, position: int) -> int | None:
        return value_of(self.argument(name, position))

    def signal(self, name: str, position: int) -> Signal | None:
        value = self.id(name, position)
        return None if value is None else self.signals.get(value)

    def read(self, position: int = 0) -> tuple[int, Signal]:
        """Id and signal of the tensor operand at that position; raises `UnpredictableError` if it is unknown."""
        value = self.op.inputs[position]
        if value not in self.signals:
            raise UnpredictableError(f"nothing is known about the input of {self.op.name}")
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
    """A rule does not cover this use of its op: prediction stops here, or continues from the measured value."""


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


def single_output(signal: Signal | None, back: Back) -> MomentMap:
    """A moment map with one output."""
    return MomentMap(outputs=(signal,), back=back)


def rearrangement(
    call: Call, forth: Callable[[RandomField], RandomField], back: Callable[[RandomField], RandomField]
) -> MomentMap:
    """The moment map of an op that only moves elements: the field in other axes, from the same source."""
    value, x = call.read()

    def pull(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        return {value: tuple(replace(term, field=back(term.field)) for term in grads[0])}

    return single_output(rearranged(x, forth), pull)


def expanded(signal: Signal, shape: tuple[int, ...]) -> Signal:
    """The signal broadcast to a shape."""
    return (
        signal if signal.field.shape == shape else rearranged(signal, lambda field: broadcast(field, shape))
    )


# Facts of the trace that are not statistics: which values carry a signal, need a gradient, or hold ignored labels.

# Cited: the default `ignore_index` of PyTorch's losses.
IGNORED_LABEL = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalFacts:
    """Facts about the values of a trace, by value id."""

    live: frozenset[int]
    """Values that depend on the batch or on a parameter."""
    trained: frozenset[int]
    """Values with a gradient: they depend on a trainable parameter without a `detach` in between."""
    ignored: dict[int, float]
    """Share of labels that a loss ignores."""
    causal: frozenset[int]
    """Masks that hide later positions, made by comparing positions or by cutting out a triangle."""


def read_signal_facts(trace: Trace) -> SignalFacts:
    """Read the facts in one pass over the ops."""
    trainable = {parameter.name for parameter in trace.parameters if parameter.trainable}
    live = {value.id for value in trace.values if value.source in ("input", "target", "parameter")}
    trained = {value.id for value in trace.values if value.source == "parameter" and value.name in trainable}
    ignored: dict[int, float] = {}
    causal: set[int] = set()
    for op in trace.ops:
        if causal.intersection(op.inputs) or _is_causal_mask(op, trace):
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


def _is_causal_mask(op: Op, trace: Trace) -> bool:
    """Whether an op makes a square mask by a triangle or by comparing two tensors of positions."""
    shape = trace.values[op.outputs[0]].shape
    square = len(shape) > 1 and shape[-1] == shape[-2] > 1
    compares = op.name in ("le", "lt", "ge", "gt") and len(op.inputs) == 2
    return square and (op.name in ("tril", "triu") or compares)


def _ignored_by(op: Op, trace: Trace, known: dict[int, float]) -> float:
    """Share of ignored labels after an op; language models shift labels by padding one end and cutting the other."""
    if not op.inputs or trace.values[op.outputs[0]].floating:
        return 0.0
    before = known.get(op.inputs[0], 0.0)
    if op.name == "pad" and argument(op, "value", 3) == IGNORED_LABEL:
        old, new = (max(trace.values[each].shape[-1:] or (1,)) for each in (op.inputs[0], op.outputs[0]))
        return before + (new - old) / new if new else before
    if op.name == "getitem" and before:
        old, new = (max(trace.values[each].shape[-1:] or (1,)) for each in (op.inputs[0], op.outputs[0]))
        return min(before * old / new, 1.0) if new else before
    return before if op.kind in ("layout", "cast", "select") else 0.0
