"""Theory: the second moment of every tensor and of its gradient, from the recorded ops and two numbers a weight.

field       a tensor as a random field: mean, second moment, what neighbours share along each axis
signal      of which Gaussian source a tensor is which function, at quadrature nodes
gradient    noises from the exits of a pointwise region, each times a function of the source
moments/    the rules, one file a family: forward and back
forward, backward   one pass each over the trace
"""

from __future__ import annotations

from leadline.readings.theory.account import account_for
from leadline.readings.theory.criticality import critical_gain, depth_scale
from leadline.readings.theory.prediction import filled, predict, predict_moments
from leadline.records import Theory, Trace

__all__ = ["critical_gain", "depth_scale", "predict_moments", "predict_with_account"]


def predict_with_account(trace: Trace) -> tuple[Trace, Theory]:
    """The trace with predictions, and the account of them: what they cover and where they part from measurement."""
    found = predict(trace)
    return filled(trace, found), account_for(trace, found)
