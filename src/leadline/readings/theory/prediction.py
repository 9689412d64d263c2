"""Fills a trace with predicted moments next to the measured ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import torch

from leadline.readings.theory.backward import Backward, predict_backward
from leadline.readings.theory.forward import Forward, predict_forward
from leadline.readings.theory.moment_rule import SignalFacts, read_signal_facts
from leadline.records import Op, Trace
from leadline.tracer.process import pause_garbage_collection

# Derived: two standard deviations of ln E[x^2] at 5 L / n = 1, where single networks differ from the mean.
MAX_BAND = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Both passes of theory over one trace."""

    facts: SignalFacts
    forward: Forward
    backward: Backward


def predict(trace: Trace, facts: SignalFacts | None = None, *, from_measured: bool = False) -> Prediction:
    """Run both passes; with `from_measured` every op reads measured values (see `predict_forward`).

    `facts` are those of the trace, if they were read already.
    """
    with pause_garbage_collection(cycles=False), torch.inference_mode(mode=False), torch.no_grad():
        facts = read_signal_facts(trace) if facts is None else facts
        forward = predict_forward(trace, facts, from_measured=from_measured)
        backward = predict_backward(trace, facts, forward, from_measured=from_measured)
    return Prediction(facts=facts, forward=forward, backward=backward)


def predict_moments(trace: Trace) -> Trace:
    """The trace with the predicted second moments of each op's first floating output and of its gradient.

    They are None where there is no prediction: for ops without a signal or without a rule, for ops that depend on them
    where nothing was measured, and where the finite-width band is wider than `MAX_BAND`.
    """
    return fill_predictions(trace, predict(trace))


def fill_predictions(trace: Trace, prediction: Prediction) -> Trace:
    """The trace with the predictions written into its ops."""
    return msgspec.structs.replace(trace, ops=tuple(_fill_op(trace, op, prediction) for op in trace.ops))


def first_floating(trace: Trace, op: Op) -> int | None:
    """The id of the first floating-point output of an op."""
    return next((value for value in op.outputs if trace.values[value].floating), None)


def _fill_op(trace: Trace, op: Op, prediction: Prediction) -> Op:
    value = first_floating(trace, op)
    if value is None or value not in prediction.forward.predicted or value not in prediction.facts.live:
        return op
    band = _band(prediction, value)
    if band > MAX_BAND:
        return msgspec.structs.replace(op, band=band)
    forward_ms = prediction.forward.predicted[value].ms
    backward = prediction.backward.fields.get(value)
    return msgspec.structs.replace(
        op,
        forward_ms_predicted=forward_ms if prediction.forward.signals[value].visible_share is None else None,
        backward_ms_predicted=None if backward is None or backward.ms < 0 else backward.ms,
        band=band,
    )


def _band(prediction: Prediction, value: int) -> float:
    forward = prediction.forward
    return 2 * math.sqrt(max(forward.sources.fluctuation(forward.signals[value]), 0.0))
