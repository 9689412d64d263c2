"""The backward pass of theory: gradients from the loss to the first op, over the graph that the forward pass left."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from leadline.readings.theory.field import RandomField, constant, independent
from leadline.readings.theory.forward import Forward
from leadline.readings.theory.gradient import Terms, fresh, total, weighted
from leadline.readings.theory.moment_rule import SignalFacts
from leadline.readings.theory.signal import Signal
from leadline.records import Op, Trace

_REFUSALS = (ArithmeticError, LookupError, TypeError, ValueError, RuntimeError)


@dataclass(slots=True)
class Backward:
    """The predicted gradient of each value, and where prediction went on from the measured one, or ended."""

    fields: dict[int, RandomField] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)
    """By op: why it passes no gradient on."""
    anchors: list[int] = field(default_factory=list)
    """Ops in front of which prediction goes on from the measured gradient."""


@dataclass(slots=True)
class _State:
    result: Backward
    terms: dict[int, Terms]
    lost: set[int]
    """Values of which some part of the gradient is unknown."""


def predict_backward(
    trace: Trace, facts: SignalFacts, forward: Forward, *, from_measured: bool = False
) -> Backward:
    """Propagate gradients through all ops, last first. `from_measured` is as in `predict_forward`."""
    state = _State(Backward(), {}, set())
    if trace.loss_value is None:
        return state.result
    shape = trace.values[trace.loss_value].shape
    state.terms[trace.loss_value] = fresh(constant(shape, 1.0))
    for op in reversed(trace.ops):
        outputs = [_finished(trace, facts, value, forward, state, from_measured) for value in op.outputs]
        if any(outputs) or state.lost.intersection(op.outputs):
            _pass_on(trace, facts, op, outputs, forward, state)
    return state.result


def _finished(
    trace: Trace, facts: SignalFacts, value: int, forward: Forward, state: _State, from_measured: bool
) -> Terms:
    """All readers have been asked: the gradient of this value is complete."""
    terms = state.terms.pop(value, ())
    signal = forward.signals.get(value)
    if value not in facts.trained or signal is None:
        return ()
    measured = trace.values[value].backward
    if value in state.lost:
        if measured is None or not math.isfinite(measured.ms):
            return ()
        state.lost.discard(value)
        maker = trace.values[value].op
        state.result.anchors += [] if maker is None else [maker]
        return fresh(independent(signal.field.shape, 0.0, measured.ms))
    if not terms:
        return ()
    found = total(terms, signal)
    if not math.isfinite(found.ms):
        state.lost.add(value)
        return ()
    state.result.fields[value] = found
    if from_measured and measured is not None and found.ms > 0 and math.isfinite(measured.ms):
        return weighted(terms, math.sqrt(measured.ms / found.ms))
    return terms


def _pass_on(
    trace: Trace, facts: SignalFacts, op: Op, outputs: list[Terms], forward: Forward, state: _State
) -> None:
    transfer = forward.transfers.get(op.index)
    blocked = state.lost.intersection(op.outputs)
    if transfer is None or blocked:
        if transfer is None:
            state.result.refusals[op.index] = forward.refusals.get(op.index, "no rule")
        _lose(facts, op, state)
        return
    try:
        found = transfer.back(outputs)
        _check(found, forward.signals)
    except _REFUSALS as refusal:
        state.result.refusals[op.index] = f"unexpected: {type(refusal).__name__}: {refusal}"
        _lose(facts, op, state)
        return
    for value, terms in found.items():
        if value in facts.trained:
            state.terms[value] = (*state.terms.get(value, ()), *terms)


def _check(found: Mapping[int, Terms], signals: Mapping[int, Signal]) -> None:
    for value, terms in found.items():
        for term in terms:
            if term.field.shape != signals[value].field.shape:
                raise ValueError(f"a gradient of shape {term.field.shape} for {signals[value].field.shape}")


def _lose(facts: SignalFacts, op: Op, state: _State) -> None:
    state.lost.update(value for value in op.inputs if value in facts.trained)
