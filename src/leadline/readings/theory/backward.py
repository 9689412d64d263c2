"""The backward pass of theory: passes gradients from the loss to the first op."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from leadline.readings.theory.field import RandomField, constant, independent
from leadline.readings.theory.forward import Forward
from leadline.readings.theory.gradient import Terms, gradient_field, new_noise, weighted
from leadline.readings.theory.moment_rule import SignalFacts
from leadline.readings.theory.signal import Signal
from leadline.records import Op, Trace

_REFUSALS = (ArithmeticError, LookupError, TypeError, ValueError, RuntimeError)


@dataclass(slots=True)
class Backward:
    """The predicted gradient of each value, and the ops where prediction ended or continued from the measured one."""

    fields: dict[int, RandomField] = dataclasses.field(default_factory=dict)
    refusals: dict[int, str] = dataclasses.field(default_factory=dict)
    """Why an op passes no gradient, by its index."""
    anchors: list[int] = dataclasses.field(default_factory=list)
    """Ops before which prediction continues from the measured gradient."""


@dataclass(slots=True)
class _State:
    result: Backward
    terms: dict[int, Terms]
    lost: set[int]
    """Values whose gradient is unknown in part."""


def predict_backward(
    trace: Trace, facts: SignalFacts, forward: Forward, *, from_measured: bool = False
) -> Backward:
    """Propagate gradients through all ops, last first. `from_measured` is as in `predict_forward`."""
    state = _State(Backward(), {}, set())
    if trace.loss_value is None:
        return state.result
    shape = trace.values[trace.loss_value].shape
    state.terms[trace.loss_value] = new_noise(constant(shape, 1.0))
    for op in reversed(trace.ops):
        outputs = [
            _complete_gradient(trace, facts, value, forward, state, from_measured) for value in op.outputs
        ]
        if any(outputs) or state.lost.intersection(op.outputs):
            _pass_back(trace, facts, op, outputs, forward, state)
    return state.result


def _complete_gradient(
    trace: Trace, facts: SignalFacts, value: int, forward: Forward, state: _State, from_measured: bool
) -> Terms:
    """The gradient of a value after all of its readers have contributed."""
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
        return new_noise(independent(signal.field.shape, 0.0, measured.ms))
    if not terms:
        return ()
    field = gradient_field(terms, signal)
    if not math.isfinite(field.ms):
        state.lost.add(value)
        return ()
    state.result.fields[value] = field
    if from_measured and measured is not None and field.ms > 0 and math.isfinite(measured.ms):
        return weighted(terms, math.sqrt(measured.ms / field.ms))
    return terms


def _pass_back(
    trace: Trace, facts: SignalFacts, op: Op, outputs: list[Terms], forward: Forward, state: _State
) -> None:
    moment_map = forward.moment_maps.get(op.index)
    blocked = state.lost.intersection(op.outputs)
    if moment_map is None or blocked:
        if moment_map is None:
            state.result.refusals[op.index] = forward.refusals.get(op.index, "no rule")
        _mark_lost(facts, op, state)
        return
    try:
        contributions = moment_map.back(outputs)
        _check(contributions, forward.signals)
    except _REFUSALS as refusal:
        state.result.refusals[op.index] = f"unexpected: {type(refusal).__name__}: {refusal}"
        _mark_lost(facts, op, state)
        return
    for value, terms in contributions.items():
        if value in facts.trained:
            state.terms[value] = (*state.terms.get(value, ()), *terms)


def _check(contributions: Mapping[int, Terms], signals: Mapping[int, Signal]) -> None:
    for value, terms in contributions.items():
        for term in terms:
            if term.field.shape != signals[value].field.shape:
                raise ValueError(f"a gradient of shape {term.field.shape} for {signals[value].field.shape}")


def _mark_lost(facts: SignalFacts, op: Op, state: _State) -> None:
    state.lost.update(value for value in op.inputs if value in facts.trained)
