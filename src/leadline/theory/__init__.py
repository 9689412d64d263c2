"""Theory: the second moment of every tensor and of its gradient, from the recorded ops and two numbers a weight.

field       a tensor as a random field: mean, second moment, what neighbours share along each axis
signal      of which Gaussian source a tensor is which function, at quadrature nodes
gradient    noises from the exits of a pointwise region, each times a function of the source
moments/    the rules, one file a family: forward and back
forward, backward   one pass each over the trace
"""

from __future__ import annotations

from leadline.theory.prediction import predict_moments

__all__ = ["predict_moments"]
