"""Moment rules of reductions over axes: means, sums, variances, norms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from leadline.readings.theory.field import (
    RandomField,
    averaged,
    broadcast,
    constant,
    mean_pair_moment,
    reshaped,
    scaled,
    spread_within,
)
from leadline.readings.theory.gradient import Terms, gradient_field, new_noise, new_radial_noise
from leadline.readings.theory.moment_rule import (
    Call,
    MomentMap,
    UnpredictableError,
    moment_rule,
    single_output,
)
from leadline.readings.theory.moments.norm import centered
from leadline.readings.theory.moments.softmax import softmax_moments
from leadline.readings.theory.signal import Signal, slope_of

# Heuristic: a mean with a smaller relative variance counts as deterministic; 2/n of squares reaches it at n = 4.
MAX_DETERMINISTIC_VARIANCE = 0.5


# Derived: the variance of a part that vanishes, compared with that of independent noise, is a rounding error.
MAX_NO_RADIAL = 1e-2


def _axes(call: Call, x: Signal, position: int = 1) -> list[int]:
    rank = len(x.field.shape)
    given = call.argument("dim", position)
    if given is None or given == [] or isinstance(given, bool | str):
        return list(range(rank))
    axes = given if isinstance(given, list) else [given]
    if call.op.name in ("mean", "sum") and "dim" not in call.op.kwargs and position == 1:
        axes = list(call.sequence("dim", 1) or axes)
        axes = [each for each in axes if isinstance(each, int) and not isinstance(each, bool)]
    return [int(axis) % rank for axis in axes]


@moment_rule(assumes="positions along the axis are alike")
def mean(call: Call) -> MomentMap:
    r"""$y = \frac1n \sum x$: $E[y^2] = \frac1n q + \frac{n-1}{n} s$, with $s$ what positions share; a sum is $n$ means.

    If little variance is left compared with the mean, the result counts as deterministic. $g_x = g_y / n$, equal for
    all positions.
    """
    value, x = call.read()
    axes = _axes(call, x)
    n = math.prod(x.field.shape[axis] for axis in axes)
    factor = 1.0 if "mean" in call.op.name else float(n)
    kept = averaged(x.field, axes, keep=True)
    field = scaled(reshaped(kept, call.output.shape), factor)
    tight = spread_within(field) <= MAX_DETERMINISTIC_VARIANCE
    if tight:
        out = Signal(field=field, key=-1, deterministic=True, noise=x.noise, origin=x.key)
    else:
        spread = slope_of(x)
        variance = max(kept.ms - kept.mean**2, 0.0)
        parts = {x.key: factor * variance / spread} if x.key >= 0 and spread else None
        out = call.sources.gaussian(field, x.noise, parts)
    wide = kept.shape

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = broadcast(scaled(reshaped(gradient_field(grads[0], out), wide), factor / n), x.field.shape)
        radial = grads[0][0].radial
        if (
            len(grads[0]) == 1
            and radial is not None
            and sum(each**2 for each in radial.values()) < MAX_NO_RADIAL
        ):
            return {value: new_radial_noise(g, x, {})}
        return {value: new_noise(g)}

    return single_output(out, back)


@moment_rule(assumes="positions along the axis are alike")
def variance(call: Call) -> MomentMap:
    r"""$v = \frac{1}{n - 1}\sum (x - \bar x)^2$, a constant where $n$ is large; $g_x = 2(x - \bar x) g_v/(n-1)$.

    $E[v^2] = v^2 (1 + 2/(n-1))$ for Gaussians, and $E[\sqrt v^2] = v$. Biased ones divide by $n$.
    """
    value, x = call.read()
    axes = _axes(call, x)
    n = math.prod(x.field.shape[axis] for axis in axes)
    inner = centered(x.field, axes)
    biased = call.argument("unbiased", 2) is False or call.argument("correction", 2) == 0
    divisor = n if biased else max(n - 1, 1)
    v = inner.ms * n / divisor
    root = "std" in call.op.name
    flat = constant(call.output.shape, math.sqrt(v) if root else v)
    first = Signal(
        field=flat if root else replace(flat, ms=flat.ms * (1 + 2 / max(n - 1, 1))),
        key=-1,
        deterministic=True,
        noise=x.noise,
        origin=x.key,
    )
    outs: list[Signal | None] = [first]
    if call.op.name.endswith("_mean"):
        outs.append(
            call.sources.gaussian(reshaped(averaged(x.field, axes, keep=True), call.shapes[1]), x.noise)
        )
    wide = averaged(x.field, axes, keep=True).shape
    derivative = (1 / math.sqrt(v) if v else 0.0) if root else 2.0

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        if not grads[0]:
            return {}
        g = broadcast(reshaped(gradient_field(grads[0], first), wide), x.field.shape)
        share = tuple(a * b for a, b in zip(g.share, inner.share, strict=True))
        field = RandomField(shape=x.field.shape, mean=0.0, ms=g.ms * inner.ms, share=share)
        return {value: new_noise(scaled(field, derivative / divisor))}

    return MomentMap(outputs=tuple(outs), back=back)


@moment_rule(assumes="the second moment does not fluctuate")
def vector_norm(call: Call) -> MomentMap:
    r"""$\|x\| = \sqrt{n q}$; its gradient is $x / \|x\|$."""
    value, x = call.read()
    order = call.argument("ord", 1) if call.op.name == "vector_norm" else call.argument("p", 1, 2)
    if order not in (None, 2, 2.0, "fro"):
        raise UnpredictableError("a norm that is not Euclidean")
    axes = _axes(call, x, 2)
    n = math.prod(x.field.shape[axis] for axis in axes)
    size = math.sqrt(n * x.field.ms)
    if not size:
        raise UnpredictableError("the norm of zeros")
    out = Signal(
        field=constant(call.output.shape, size), key=-1, deterministic=True, noise=x.noise, origin=x.key
    )
    wide = averaged(x.field, axes, keep=True).shape

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = broadcast(reshaped(gradient_field(grads[0], out), wide), x.field.shape)
        share = tuple(a * b for a, b in zip(g.share, x.field.share, strict=True))
        field = RandomField(shape=x.field.shape, mean=0.0, ms=g.ms * x.field.ms, share=share)
        return {value: new_noise(scaled(field, 1 / size))}

    return single_output(out, back)


@moment_rule(assumes="positions along the axis are alike")
def cumsum(call: Call) -> MomentMap:
    r"""$y_t = \sum_{s \le t} x_s$: $E[y^2] = \frac{n+1}{2}(q - s) + \frac{(n+1)(2n+1)}{6}s$ on average over $t$."""
    value, x = call.read()
    axis = int(call.argument("dim", 1)) % len(x.field.shape)
    n = x.field.shape[axis]
    single, squared = (n + 1) / 2, (n + 1) * (2 * n + 1) / 6

    def grown(field: RandomField) -> RandomField:
        ms = single * (field.ms - field.share[axis]) + squared * field.share[axis]
        ratio = ms / field.ms if field.ms else 1.0
        share = tuple(ms / 2 if each == axis else s * ratio for each, s in enumerate(field.share))
        return replace(field, mean=field.mean * single, ms=ms, share=share)

    out = call.sources.gaussian(grown(x.field), x.noise)
    return single_output(out, lambda grads: {value: new_noise(grown(gradient_field(grads[0], out)))})


@moment_rule(assumes="logits are Gaussian")
def logsumexp(call: Call) -> MomentMap:
    r"""$E\ln \sum e^{x} = \mu + \ln n + \sigma^2/2 + \delta$ over $n$ logits; the gradient is softmax.

    $\delta \le 0$ is the correction for few keys, about $-(e^{\sigma^2} - 1)/2n$; by a fixed sample of Gaussian rows.
    """
    value, x = call.read()
    axes = _axes(call, x)
    n = math.prod(x.field.shape[axis] for axis in axes)
    spread = x.field.ms - mean_pair_moment(x.field, axes)
    weights = softmax_moments(n, spread, 1.0)
    level = x.field.mean + math.log(n) + spread / 2 + weights.excess
    out = Signal(
        field=constant(call.output.shape, level),
        key=-1,
        deterministic=True,
        noise=x.noise,
    )
    wide = averaged(x.field, axes, keep=True).shape

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = broadcast(reshaped(gradient_field(grads[0], out), wide), x.field.shape)
        return {value: new_noise(scaled(g, math.sqrt(weights.squared / n)))}

    return single_output(out, back)
