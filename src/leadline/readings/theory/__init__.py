"""Theory: predicts the second moment of every tensor and its gradient from the recorded ops and two numbers per weight.

field         a tensor as a random field: mean, second moment, and what neighbors share along each axis
profile       `position_profile`: how the second moment differs along one axis
signal        a tensor as a function of a Gaussian source, by its values at quadrature nodes
quadrature    moments and kernels of such functions
gradient      noises from the exits of a pointwise region, each times a function of the source
moment_rule   what a moment rule is
moments/      the rules, one file per family of ops: forward and backward
common_tokens keys and values that read the same tokens
write         writes into a region of a tensor, also through a view
forward       one pass over the trace that applies them
backward      one pass back
prediction    both passes, and the trace with predictions
account       what they cover and where they differ from measurement
criticality   the critical gain of an activation, and the depth scale away from it
"""

from __future__ import annotations

from leadline.readings.theory.account import account_for
from leadline.readings.theory.criticality import critical_gain, depth_scale
from leadline.readings.theory.prediction import fill_predictions, predict, predict_moments
from leadline.records import Theory, Trace

__all__ = ["critical_gain", "depth_scale", "predict_moments", "predict_with_account"]


def predict_with_account(trace: Trace) -> tuple[Trace, Theory]:
    """The trace with predictions, and the account of them: what they cover and where they differ from measurement."""
    prediction = predict(trace)
    return fill_predictions(trace, prediction), account_for(trace, prediction)
