r"""What an op should do to a signal, by its own input and weights: predicted log-gains, forward and backward.

Backward gains are those of the squared gradient $G = \sum g^2$, so that they do not depend on sizes: a weight layer
multiplies it by $\sigma_w^2 = n\,E[W^2]$ ($n$ the fan-in) whatever its fan-out, an activation by $E[\phi'^2]$.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from leadline.ops.arguments import argument
from leadline.ops.slopes import slope_of
from leadline.records import Op, Parameter, Value


class Gains(NamedTuple):
    """Natural logarithms of what an op multiplies the second moment and the squared gradient by."""

    forward: float | None
    backward: float | None


UNKNOWN = Gains(None, None)


def predicted(op: Op, read: Value, parameters: Mapping[str, Parameter]) -> Gains:
    """The gains of one op that reads the signal `read`; unknown where there is no formula."""
    if read.forward is None or not read.forward.ms > 0:
        return UNKNOWN
    if op.kind == "weight":
        return _weight(op, read, parameters)
    if op.kind == "activation":
        return _activation(op, read)
    if op.kind == "norm":
        return _norm(op, read, parameters)
    if op.kind == "dropout":
        return _dropout(op)
    return UNKNOWN


def weight_variance(op: Op, parameters: Mapping[str, Parameter]) -> float | None:
    r"""$\sigma_w^2 = n\,E[W^2]$ of a weight layer, $n$ being its fan-in; None if its weight was not seen."""
    weight = next((p for name in op.params if (p := parameters.get(name)) and len(p.shape) > 1), None)
    if weight is None or weight.ms is None or (fan_in := fan_in_of(op, weight)) is None:
        return None
    return fan_in * weight.ms


def fan_in_of(op: Op, weight: Parameter) -> int | None:
    """How many inputs one output of a weight layer sums over; None where that is no one number."""
    if op.name == "linear":
        return weight.shape[-1]
    if op.name in ("conv1d", "conv2d", "conv3d"):
        return math.prod(weight.shape[1:])
    if op.name in ("matmul", "mm", "addmm"):
        return weight.shape[-2]
    return None


def _weight(op: Op, read: Value, parameters: Mapping[str, Parameter]) -> Gains:
    """Independent zero-mean weights; a bias adds its own second moment."""
    variance = weight_variance(op, parameters)
    if not variance or read.forward is None:
        return UNKNOWN
    biases = (p for name in op.params if (p := parameters.get(name)) and len(p.shape) == 1)
    bias_ms = sum(bias.ms or 0.0 for bias in biases)
    return Gains(_log(variance + bias_ms / read.forward.ms), _log(variance))


def _activation(op: Op, read: Value) -> Gains:
    """A Gaussian input of the measured mean and variance."""
    if read.forward is None or (slope := slope_of(op.name, read.forward.mean, read.forward.var)) is None:
        return UNKNOWN
    return Gains(_log(slope.ms / read.forward.ms), _log(slope.slope_ms))


def _norm(op: Op, read: Value, parameters: Mapping[str, Parameter]) -> Gains:
    r"""Centring norms divide by the variance and remove 2 of $d$ directions; RMSNorm by the second moment and 1 of $d$.

    A batch norm's variance is that of each feature: what the samples have in common is taken out of it.
    """
    if read.forward is None or not read.shape:
        return UNKNOWN
    gammas = [p for name in op.params if (p := parameters.get(name)) and p.ms is not None]
    gamma_ms = gammas[0].ms if gammas and gammas[0].ms is not None else 1.0
    width = read.shape[-1]
    if op.name == "layer_norm":
        size, kept = read.forward.var, 1 - 2 / width if width > 2 else 1.0
    elif op.name == "rms_norm":
        size, kept = read.forward.ms, 1 - 1 / width if width > 1 else 1.0
    elif op.name == "batch_norm" and read.common_ms is not None:
        size, kept = max(read.forward.ms - read.common_ms, 0.0), 1 - 2 / (read.forward.count / read.shape[1])
    else:
        return UNKNOWN
    return Gains(_log(gamma_ms / read.forward.ms), _log(gamma_ms * kept / size) if size > 0 else None)


def _dropout(op: Op) -> Gains:
    """Inverted dropout keeps the mean and divides the second moment by what it keeps; off, it does nothing."""
    rate, on = argument(op, "p", 1, 0.5), argument(op, "training", 2, default=True)
    gain = -math.log1p(-rate) if on is True and isinstance(rate, float) and 0 <= rate < 1 else 0.0
    return Gains(gain, gain)


def _log(gain: float) -> float | None:
    return math.log(gain) if gain > 0 and math.isfinite(gain) else None
