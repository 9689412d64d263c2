"""From a trace to the same trace with predictions beside the measurements."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import torch

from leadline.readings.theory.backward import Backward, predict_backward
from leadline.readings.theory.forward import Forward, predict_forward
from leadline.readings.theory.moment_rule import SignalFacts, read_signal_facts
from leadline.readings.theory.signal import fluctuation
from leadline.records import Op, Trace

WIDEST = 2.0  # e-folds at two standard deviations: 5 L / n = 1, where single networks part (derived)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Both passes of theory over one trace."""

    facts: SignalFacts
    forward: Forward
    backward: Backward


def predict(trace: Trace, *, from_measured: bool = False) -> Prediction:
    """Both passes; with `from_measured` every op reads measured values (see `predict_forward`)."""
    with torch.inference_mode(mode=False), torch.no_grad():
        facts = read_signal_facts(trace)
        forward = predict_forward(trace, facts, from_measured=from_measured)
        backward = predict_backward(trace, facts, forward, from_measured=from_measured)
    return Prediction(facts=facts, forward=forward, backward=backward)


def predict_moments(trace: Trace) -> Trace:
    """The trace with the predicted second moments of each op's first floating output and of its gradient.

    None where there is no prediction: ops without a signal, without a rule, behind such ops where nothing was measured,
    and where the finite-width band is wider than `WIDEST`.
    """
    return filled(trace, predict(trace))


def filled(trace: Trace, found: Prediction) -> Trace:
    """The trace with the predictions in its ops."""
    return msgspec.structs.replace(trace, ops=tuple(_filled(trace, op, found) for op in trace.ops))


def first_floating(trace: Trace, op: Op) -> int | None:
    return next((value for value in op.outputs if trace.values[value].floating), None)


def _filled(trace: Trace, op: Op, found: Prediction) -> Op:
    value = first_floating(trace, op)
    if value is None or value not in found.forward.predicted or value not in found.facts.live:
        return op
    band = _band(found, value)
    if band > WIDEST:
        return msgspec.structs.replace(op, band=band)
    ahead = found.forward.predicted[value].ms
    back = found.backward.fields.get(value)
    return msgspec.structs.replace(
        op,
        forward_ms_predicted=ahead if found.forward.signals[value].valid is None else None,
        backward_ms_predicted=None if back is None or back.ms < 0 else back.ms,
        band=band,
    )


def _band(found: Prediction, value: int) -> float:
    return 2 * math.sqrt(max(fluctuation(found.forward.signals[value]), 0.0))
