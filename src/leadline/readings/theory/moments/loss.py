"""Losses: where gradients begin."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from msgspec.structs import replace

from leadline.readings.theory import quadrature
from leadline.readings.theory.field import RandomField, scaled
from leadline.readings.theory.gradient import Terms, fresh, total
from leadline.readings.theory.moment_rule import Call, MomentMap, UnpredictableError, moment_rule, one
from leadline.readings.theory.moments.softmax import weights_of
from leadline.readings.theory.signal import number


def _unweighted(call: Call, position: int) -> None:
    """Weights of classes or samples change the loss in a way that no moment tells."""
    if call.argument("weight", position) is not None or call.op.kwargs.get("pos_weight") is not None:
        raise UnpredictableError("a loss that weighs its classes or samples")


def _scale(call: Call, places: float) -> float:
    """What the reduction divides by; 1 for a sum."""
    reduction = call.op.kwargs.get("reduction", "mean")
    if reduction == "none":
        raise UnpredictableError("a loss that is not reduced")
    return 1.0 if reduction == "sum" else places


@moment_rule(assumes="labels are independent of the logits")
def cross_entropy(call: Call) -> MomentMap:
    r"""$L = \frac1N\sum \ln\sum_c e^{s_c} - s_y$ over $C$ classes and $N$ places, of which $N_v$ count:

    $$ E[L] = \ln C + \tfrac12\sigma^2 + \delta, \qquad
       E[g_s^2] = \frac{1}{N N_v C}\big(1 - 2E[p_y] + P_2\big), \quad P_2 = E\sum_c p_c^2, \; E[p_y] = 1/C $$
    with $\sigma^2$ the variance of logits over classes and $\delta$ what few classes lack (see
    `logsumexp`). Along the classes the gradient sums to zero.
    """
    value, x = call.read()
    _unweighted(call, 2)
    axis = 1 if len(x.field.shape) > 1 else 0
    classes = x.field.shape[axis]
    spread = max(x.field.ms - (x.field.share[axis] if classes > 1 else x.field.ms), 0.0)
    weights = weights_of(classes, spread, 1.0)
    places = x.field.count / classes
    counted = places * (1 - _ignored(call))
    divisor = _scale(call, counted)
    smoothing = float(call.argument("label_smoothing", 7, 0.0) or 0.0)
    per_row = (1 - smoothing) ** 2 * (1 - 1 / classes) + weights.squared - 1 / classes
    ms = per_row / classes * counted / places / divisor**2
    share = tuple(
        ms if size == 1 else -ms / (classes - 1) if each == axis else 0.0
        for each, size in enumerate(x.field.shape)
    )
    loss = (math.log(classes) + spread / 2 + weights.excess) * counted / divisor
    return _start(call, value, loss, RandomField(shape=x.field.shape, mean=0.0, ms=ms, share=share))


def _ignored(call: Call) -> float:
    target = call.id("target", 1)
    return 0.0 if target is None else call.facts.get(target, 0.0)


def _start(call: Call, value: int, loss: float, gradient: RandomField) -> MomentMap:
    out = number(call.output.shape, loss)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        return {value: fresh(scaled(gradient, math.sqrt(total(grads[0], out).ms)))}

    return one(out, back)


@moment_rule(assumes="labels are independent of the logits")
def nll_loss(call: Call) -> MomentMap:
    """The mean of one log-probability a place: a gradient of $-1/N_v$ at the label, none elsewhere."""
    value, x = call.read()
    _unweighted(call, 2)
    axis = 1 if len(x.field.shape) > 1 else 0
    classes = x.field.shape[axis]
    places = x.field.count / classes
    counted = places * (1 - _ignored(call))
    divisor = _scale(call, counted)
    ms = counted / places / divisor**2 / classes
    share = tuple(
        ms if size == 1 else 0.0 if each == axis else ms / classes for each, size in enumerate(x.field.shape)
    )
    return _start(
        call,
        value,
        -x.field.mean * counted / divisor,
        RandomField(shape=x.field.shape, mean=0.0, ms=ms, share=share),
    )


@moment_rule(assumes="targets are independent of the output")
def mse_loss(call: Call) -> MomentMap:
    r"""$L = \frac1N \sum (y - t)^2$: $E[L] = q_y + q_t - 2\mu_y\mu_t$, $E[g^2] = 4L/N^2$."""
    (value, y), (other, t) = call.read(0), call.read(1)
    error = max(y.field.ms + t.field.ms - 2 * y.field.mean * t.field.mean, 0.0)
    n = y.field.count
    divisor = _scale(call, n)
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
    return _both(call, (value, other), error * n / divisor, field)


def _both(call: Call, values: tuple[int, int], loss: float, gradient: RandomField) -> MomentMap:
    out = number(call.output.shape, loss)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        terms = fresh(scaled(gradient, math.sqrt(total(grads[0], out).ms)))
        same = call.value(values[1]).shape == gradient.shape
        return dict.fromkeys(values, terms) if same else {values[0]: terms}

    return one(out, back)


@moment_rule(assumes="targets are independent of the output")
def robust_loss(call: Call) -> MomentMap:
    r"""$L = \frac1N \sum h(y - t)$ for Gaussian errors, by quadrature; $E[g^2] = E[h'^2]/N^2$.

    With the knee $k$: $h(e) = e^2/2k$ below it and $|e| - k/2$ above; Huber's loss is $k$ times that.
    """
    (value, y), (other, t) = call.read(0), call.read(1)
    mean = y.field.mean - t.field.mean
    error = mean + math.sqrt(y.field.var + t.field.var) * quadrature.nodes()
    knee = (
        0.0
        if call.op.name == "l1_loss"
        else float(call.op.kwargs.get("beta", call.op.kwargs.get("delta", 1.0)))
    )
    small = error.abs() < knee
    loss = torch.where(small, error.square() / (2 * knee or 1.0), error.abs() - knee / 2)
    steep = torch.where(small, error / (knee or 1.0), error.sign())
    if call.op.name == "huber_loss":
        loss, steep = knee * loss, knee * steep
    n = y.field.count
    divisor = _scale(call, n)
    slope, ms = quadrature.moments(steep)
    field = RandomField(
        shape=y.field.shape,
        mean=slope / divisor,
        ms=ms / divisor**2,
        share=(slope**2 / divisor**2,) * len(y.field.shape),
    )
    return _both(call, (value, other), quadrature.moments(loss)[0] * n / divisor, field)


@moment_rule(assumes="targets are independent of the logits")
def binary_cross_entropy(call: Call) -> MomentMap:
    r"""$L = \frac1N \sum \ln(1 + e^s) - t s$: $g = (\sigma(s) - t)/N$, by quadrature over $s$."""
    (value, x), (_, t) = call.read(0), call.read(1)
    _unweighted(call, 2)
    logits = x.field.mean + math.sqrt(x.field.var) * quadrature.nodes()
    mean, square = quadrature.moments(torch.sigmoid(logits))
    loss = quadrature.moments(torch.nn.functional.softplus(logits))[0] - t.field.mean * x.field.mean
    n = x.field.count
    divisor = _scale(call, n)
    ms = (square + t.field.ms - 2 * mean * t.field.mean) / divisor**2
    shared = ((mean - t.field.mean) / divisor) ** 2
    field = RandomField(
        shape=x.field.shape,
        mean=(mean - t.field.mean) / divisor,
        ms=ms,
        share=tuple(ms if size == 1 else shared for size in x.field.shape),
    )
    return _start(call, value, loss * n / divisor, field)


@moment_rule(assumes="targets are independent of the output")
def kl_div(call: Call) -> MomentMap:
    r"""$L = \frac1N\sum t(\ln t - x)$, $g = -t/N$ at the log-probabilities $x$.

    For log-normal targets, as softmax makes them: $E[t \ln t] = \tfrac12\mu\ln q$.
    """
    (value, x), (_, t) = call.read(0), call.read(1)
    if call.op.kwargs.get("log_target") or t.field.mean <= 0:
        raise UnpredictableError("targets as logarithms")
    reduction = call.op.kwargs.get("reduction", "mean")
    divisor = {"batchmean": x.field.shape[0], "sum": 1}.get(reduction, x.field.count)
    gradient = scaled(replace(t.field), 1 / divisor)
    if gradient.shape != x.field.shape:
        raise UnpredictableError("targets of another shape")
    entropy = t.field.mean * math.log(t.field.ms) / 2
    loss = (entropy - t.field.mean * x.field.mean) * x.field.count / divisor
    return _start(call, value, loss, gradient)
