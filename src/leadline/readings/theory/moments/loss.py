"""Moment rules of losses, where gradients begin."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from leadline.readings.theory import quadrature
from leadline.readings.theory.field import RandomField, scaled
from leadline.readings.theory.gradient import Terms, gradient_field, new_noise
from leadline.readings.theory.moment_rule import (
    Call,
    MomentMap,
    UnpredictableError,
    moment_rule,
    single_output,
)
from leadline.readings.theory.moments.softmax import softmax_moments
from leadline.readings.theory.signal import constant_signal


def _check_unweighted(call: Call, position: int) -> None:
    """Raise `UnpredictableError` if classes or samples are weighted, which moments do not describe."""
    if call.argument("weight", position) is not None or call.op.kwargs.get("pos_weight") is not None:
        raise UnpredictableError("a loss with weights for classes or samples")


def _divisor(call: Call, positions: float) -> float:
    """The divisor of the reduction; 1 for a sum."""
    reduction = call.op.kwargs.get("reduction", "mean")
    if reduction == "none":
        raise UnpredictableError("a loss that is not reduced")
    return 1.0 if reduction == "sum" else positions


@moment_rule(assumes="labels are independent of the logits")
def cross_entropy(call: Call) -> MomentMap:
    r"""$L = \frac1N\sum \ln\sum_c e^{s_c} - s_y$ over $C$ classes and $N$ positions, of which $N_v$ count:

    $$ E[L] = \ln C + \tfrac12\sigma^2 + \delta, \qquad
       E[g_s^2] = \frac{1}{N N_v C}\big(1 - 2E[p_y] + P_2\big), \quad P_2 = E\sum_c p_c^2, \; E[p_y] = 1/C $$
    with $\sigma^2$ the variance of logits over classes and $\delta$ the correction for few classes (see `logsumexp`).
    Along the classes the gradient sums to zero.
    """
    value, x = call.read()
    _check_unweighted(call, 2)
    axis = 1 if len(x.field.shape) > 1 else 0
    classes = x.field.shape[axis]
    spread = max(x.field.ms - (x.field.share[axis] if classes > 1 else x.field.ms), 0.0)
    weights = softmax_moments(classes, spread, 1.0)
    positions = x.field.count / classes
    counted_positions = positions * (1 - _ignored(call))
    divisor = _divisor(call, counted_positions)
    smoothing = float(call.argument("label_smoothing", 7, 0.0) or 0.0)
    per_row = (1 - smoothing) ** 2 * (1 - 1 / classes) + weights.squared - 1 / classes
    ms = per_row / classes * counted_positions / positions / divisor**2
    share = tuple(
        ms if size == 1 else -ms / (classes - 1) if each == axis else 0.0
        for each, size in enumerate(x.field.shape)
    )
    loss = (math.log(classes) + spread / 2 + weights.excess) * counted_positions / divisor
    return _loss_map(call, value, loss, RandomField(shape=x.field.shape, mean=0.0, ms=ms, share=share))


def _ignored(call: Call) -> float:
    target = call.id("target", 1)
    return 0.0 if target is None else call.ignored_shares.get(target, 0.0)


def _loss_map(call: Call, value: int, loss: float, gradient: RandomField) -> MomentMap:
    out = constant_signal(call.output.shape, loss)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        return {value: new_noise(scaled(gradient, math.sqrt(gradient_field(grads[0], out).ms)))}

    return single_output(out, back)


@moment_rule(assumes="labels are independent of the logits")
def nll_loss(call: Call) -> MomentMap:
    """The mean of one log-probability per position: a gradient of $-1/N_v$ at the label, zero elsewhere."""
    value, x = call.read()
    _check_unweighted(call, 2)
    axis = 1 if len(x.field.shape) > 1 else 0
    classes = x.field.shape[axis]
    positions = x.field.count / classes
    counted_positions = positions * (1 - _ignored(call))
    divisor = _divisor(call, counted_positions)
    ms = counted_positions / positions / divisor**2 / classes
    share = tuple(
        ms if size == 1 else 0.0 if each == axis else ms / classes for each, size in enumerate(x.field.shape)
    )
    return _loss_map(
        call,
        value,
        -x.field.mean * counted_positions / divisor,
        RandomField(shape=x.field.shape, mean=0.0, ms=ms, share=share),
    )


@moment_rule(assumes="targets are independent of the output")
def mse_loss(call: Call) -> MomentMap:
    r"""$L = \frac1N \sum (y - t)^2$: $E[L] = q_y + q_t - 2\mu_y\mu_t$, $E[g^2] = 4L/N^2$."""
    (value, y), (other, t) = call.read(0), call.read(1)
    error = max(y.field.ms + t.field.ms - 2 * y.field.mean * t.field.mean, 0.0)
    n = y.field.count
    divisor = _divisor(call, n)
    shared = (
        [a + b - 2 * y.field.mean * t.field.mean for a, b in zip(y.field.share, t.field.share, strict=True)]
        if y.field.shape == t.field.shape
        else [0.0] * len(y.field.shape)
    )
    field = RandomField(
        shape=y.field.shape,
        mean=2 * (y.field.mean - t.field.mean) / divisor,
        ms=4 * error / divisor**2,
        share=tuple(4 * each / divisor**2 for each in shared),
    )
    return _pair_loss_map(call, (value, other), error * n / divisor, field)


def _pair_loss_map(call: Call, values: tuple[int, int], loss: float, gradient: RandomField) -> MomentMap:
    out = constant_signal(call.output.shape, loss)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        terms = new_noise(scaled(gradient, math.sqrt(gradient_field(grads[0], out).ms)))
        same = call.value(values[1]).shape == gradient.shape
        return dict.fromkeys(values, terms) if same else {values[0]: terms}

    return single_output(out, back)


@moment_rule(assumes="targets are independent of the output")
def robust_loss(call: Call) -> MomentMap:
    r"""$L = \frac1N \sum h(y - t)$ for Gaussian errors, by quadrature; $E[g^2] = E[h'^2]/N^2$.

    With the threshold $k$: $h(e) = e^2/2k$ below it and $|e| - k/2$ above; Huber's loss is $k$ times that.
    """
    (value, y), (other, t) = call.read(0), call.read(1)
    mean = y.field.mean - t.field.mean
    error = mean + math.sqrt(y.field.var + t.field.var) * quadrature.nodes()
    threshold = (
        0.0
        if call.op.name == "l1_loss"
        else float(call.op.kwargs.get("beta", call.op.kwargs.get("delta", 1.0)))
    )
    small = error.abs() < threshold
    loss = torch.where(small, error.square() / (2 * threshold or 1.0), error.abs() - threshold / 2)
    derivative = torch.where(small, error / (threshold or 1.0), error.sign())
    if call.op.name == "huber_loss":
        loss, derivative = threshold * loss, threshold * derivative
    n = y.field.count
    divisor = _divisor(call, n)
    slope, ms = quadrature.moments(derivative)
    field = RandomField(
        shape=y.field.shape,
        mean=slope / divisor,
        ms=ms / divisor**2,
        share=(slope**2 / divisor**2,) * len(y.field.shape),
    )
    return _pair_loss_map(call, (value, other), quadrature.moments(loss)[0] * n / divisor, field)


@moment_rule(assumes="targets are independent of the logits")
def binary_cross_entropy(call: Call) -> MomentMap:
    r"""$L = \frac1N \sum \ln(1 + e^s) - t s$: $g = (\sigma(s) - t)/N$, by quadrature over $s$."""
    (value, x), (_, t) = call.read(0), call.read(1)
    _check_unweighted(call, 2)
    logits = x.field.mean + math.sqrt(x.field.var) * quadrature.nodes()
    mean, square = quadrature.moments(torch.sigmoid(logits))
    loss = quadrature.moments(torch.nn.functional.softplus(logits))[0] - t.field.mean * x.field.mean
    n = x.field.count
    divisor = _divisor(call, n)
    ms = (square + t.field.ms - 2 * mean * t.field.mean) / divisor**2
    shared = ((mean - t.field.mean) / divisor) ** 2
    field = RandomField(
        shape=x.field.shape,
        mean=(mean - t.field.mean) / divisor,
        ms=ms,
        share=tuple(ms if size == 1 else shared for size in x.field.shape),
    )
    return _loss_map(call, value, loss * n / divisor, field)


@moment_rule(assumes="targets are independent of the output")
def kl_div(call: Call) -> MomentMap:
    r"""$L = \frac1N\sum t(\ln t - x)$, $g = -t/N$ at the log-probabilities $x$.

    For log-normal targets, which softmax makes: $E[t \ln t] = \tfrac12\mu\ln q$.
    """
    (value, x), (_, t) = call.read(0), call.read(1)
    if call.op.kwargs.get("log_target") or t.field.mean <= 0:
        raise UnpredictableError("targets given as logarithms")
    reduction = call.op.kwargs.get("reduction", "mean")
    divisor = {"batchmean": x.field.shape[0], "sum": 1}.get(reduction, x.field.count)
    gradient = scaled(t.field, 1 / divisor)
    if gradient.shape != x.field.shape:
        raise UnpredictableError("targets of another shape")
    entropy = t.field.mean * math.log(t.field.ms) / 2
    loss = (entropy - t.field.mean * x.field.mean) * x.field.count / divisor
    return _loss_map(call, value, loss, gradient)
