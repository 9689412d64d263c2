"""Moment rules of norms that are one op."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from leadline.ops.arguments import norm_eps
from leadline.readings.theory import quadrature
from leadline.readings.theory.field import (
    RandomField,
    mean_pair_moment,
    product,
    profile_of,
    reshaped,
    reweighted,
    scaled,
)
from leadline.readings.theory.gradient import (
    Terms,
    gradient_field,
    new_noise,
    new_radial_noise,
    radial_part,
    radial_ratio,
)
from leadline.readings.theory.moment_rule import (
    Call,
    MomentMap,
    UnpredictableError,
    expanded,
    moment_rule,
    single_output,
)
from leadline.readings.theory.moments.arithmetic import add_signals
from leadline.readings.theory.position_profile import MIN_WEIGHT, PositionProfile, normalized_profile
from leadline.readings.theory.signal import (
    Signal,
    correlations,
    nodes_of,
    slope_of,
    source_field,
    unsteady_share,
)

# Derived: 1/(1 - f) is the second order of E[1/v], which means nothing where it doubles the first.
MAX_RELATIVE_VARIANCE = 0.5


def centered(x: RandomField, axes: Sequence[int]) -> RandomField:
    """The field of $x - \\bar x$ with the mean over some axes."""
    common = mean_pair_moment(x, axes)
    share = []
    for axis in range(len(x.shape)):
        if axis in axes:
            size = x.shape[axis]
            share.append(x.share[axis] - common if len(axes) > 1 else -(x.ms - common) / max(size - 1, 1))
        else:
            share.append(x.share[axis] - mean_pair_moment(x, axes, (axis,)))
    ms = max(x.ms - common, 0.0)
    profile = profile_of(x)
    if profile is None or profile.axis in axes:
        profile = None
    elif profile.pairs is not None and ms > 0:
        pairs = (profile.pairs * x.ms - mean_pair_moment(x, axes, (profile.axis,))) / ms
        pairs.diagonal().copy_(profile.pairs.diagonal())
        profile = profile._replace(pairs=pairs)
    return RandomField(shape=x.shape, mean=0.0, ms=ms, share=tuple(share), profile=profile)


def normalized(
    call: Call, value: int, x: Signal, axes: Sequence[int], eps: float, *, center: bool
) -> MomentMap:
    r"""$y = (x - \bar x)/\sqrt{v + \epsilon}$ over some axes with $n$ positions, $v$ the variance there:

    $$ E[y^2] = \frac{v}{v + \epsilon}, \qquad
       g_x^2 = \frac{g_y^2 - \overline{g_y}^2}{v + \epsilon}\Big(1 - \frac{v}{v+\epsilon}\frac1n\Big)\frac{1}{1 - f} $$
    The parts of the gradient along 1 (if centered) and along $y$ are lost. $f$ is the relative variance of $v$ between
    positions: small variances count more, so that $E[1/v] = 1/(v(1 - f))$ for Gaussians.
    """
    inner = centered(x.field, axes) if center else x.field
    v = inner.ms
    if v + eps <= 0 or not math.isfinite(v):
        raise UnpredictableError("a norm of a constant tensor")
    gain = 1 / math.sqrt(v + eps)
    n = math.prod(x.field.shape[axis] for axis in axes)
    over_features = tuple(axes) == (len(x.field.shape) - 1,)
    key = x.key
    field = scaled(inner, gain)
    uneven = profile_of(inner)
    gains = None if uneven is None or uneven.axis in axes else _gain_profile(uneven, v, eps)
    if gains is not None:
        size, along = gains
        gain *= math.sqrt(size)
        field = reweighted(scaled(inner, gain), along)
    slope = slope_of(x) * gain
    out = replace(
        x, field=field, slope=slope, nodes=None, source=None, exact=True, noise=0.0, deterministic=False
    )
    if x.nodes is not None:
        shifted = (x.nodes - (x.field.mean if center else 0.0)) * gain
        out = replace(out, nodes=shifted, source=x.source)
    elif abs(abs(slope) - math.sqrt(max(field.var, 0.0))) > 1e-6 * max(abs(slope), 1e-30):
        out = replace(out, slope=math.copysign(math.sqrt(field.var), slope or 1.0), key=key)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = gradient_field(grads[0], out)
        passed = centered(g, axes) if center else g
        passed = passed if gains is None else reweighted(passed, gains[1])
        part = v / (v + eps)
        radial = radial_part(grads[0], out) if over_features else {}
        ratio = radial_ratio(radial, g, out) if over_features else 1.0
        left = max(1 - part * ratio / n, 0.0) if n > 1 else 1.0
        left /= 1 - min(_relative_variance(x, inner, axes) * part**2, MAX_RELATIVE_VARIANCE)
        field = scaled(passed, gain * math.sqrt(left))
        return {value: new_radial_noise(field, x, radial, 1 - part) if over_features else new_noise(field)}

    return single_output(out, back)


def _gain_profile(x: PositionProfile, v: float, eps: float) -> tuple[float, PositionProfile | None]:
    r"""The mean of $1/(v w_p + \epsilon)$ over the positions $p$, relative to $1/(v + \epsilon)$, and its profile."""
    return normalized_profile(x.axis, [(v + eps) / max(v * each + eps, MIN_WEIGHT * v) for each in x.weights])


def _relative_variance(x: Signal, inner: RandomField, axes: Sequence[int]) -> float:
    r"""Relative variance of the mean square over the axes: $(\kappa - 1)\overline{\rho^2}$, $2/n$ for Gaussians.

    `inner` is the field of the tensor whose mean square is taken, without the mean over the axes if that is removed.
    """
    points = nodes_of(x) - x.field.mean + inner.mean
    square = replace(source_field(x), share=tuple(each * each for each in correlations(inner)))
    return max(quadrature.kurtosis(points) - 1, 0.0) * mean_pair_moment(square, axes) * unsteady_share(x)


def affine(
    call: Call, inner: MomentMap, weight: int | None, bias: int | None, shape: tuple[int, ...]
) -> MomentMap:
    """The moment map of the norm's output times gamma plus beta, each in the given `shape`."""
    y = inner.outputs[0]
    if y is None:
        return inner
    gamma = _expanded_parameter(call, weight, shape, y)
    beta = _expanded_parameter(call, bias, shape, y)
    if gamma is None and beta is None:
        return inner
    out = y
    if gamma is not None:
        if gamma.deterministic:
            factor = gamma.field.mean
            nodes = None if y.nodes is None else y.nodes * factor
            out = replace(y, field=scaled(y.field, factor), slope=y.slope * factor, nodes=nodes)
        else:
            out = replace(call.sources.gaussian(product(y.field, gamma.field)), exact=y.exact)
    if beta is not None:
        out = replace(add_signals(call, out, beta), exact=y.exact)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = gradient_field(grads[0], out)
        passed = g if gamma is None else product(g, gamma.field)
        return inner.back([new_radial_noise(passed, y, radial_part(grads[0], out))])

    return single_output(out, back)


def _expanded_parameter(call: Call, value: int | None, shape: tuple[int, ...], y: Signal) -> Signal | None:
    if value is None or value not in call.signals:
        return None
    signal = call.signals[value]
    flat = replace(signal, field=reshaped(signal.field, shape))
    return expanded(flat, y.field.shape)


@moment_rule(assumes="features have one mean and one variance")
def layer_norm(call: Call) -> MomentMap:
    """Layer norm over the last axes, with gain and bias."""
    value, x = call.read()
    over = call.argument("normalized_shape", 1)
    count = len(over) if isinstance(over, list | tuple) else 1
    axes = range(len(x.field.shape) - count, len(x.field.shape))
    inner = normalized(call, value, x, axes, norm_eps(call.op), center=True)
    return affine(call, inner, call.id("weight", 2), call.id("bias", 3), x.field.shape[-count:])


@moment_rule(assumes="features have one second moment")
def rms_norm(call: Call) -> MomentMap:
    """RMS norm over the last axes, without centering."""
    value, x = call.read()
    over = call.argument("normalized_shape", 1)
    count = len(over) if isinstance(over, list | tuple) else 1
    axes = range(len(x.field.shape) - count, len(x.field.shape))
    inner = normalized(call, value, x, axes, norm_eps(call.op), center=False)
    return affine(call, inner, call.id("weight", 2), None, x.field.shape[-count:])


@moment_rule(assumes="each channel has one variance")
def batch_norm(call: Call) -> MomentMap:
    """In training over batch and positions of each channel; in evaluation an affine map by the running statistics."""
    value, x = call.read()
    training = bool(call.argument("training", 5))
    shape = (x.field.shape[1],) + (1,) * (len(x.field.shape) - 2)
    axes = [axis for axis in range(len(x.field.shape)) if axis != 1]
    mean, var = call.signal("running_mean", 1), call.signal("running_var", 2)
    if training or mean is None or var is None:
        inner = normalized(call, value, x, axes, norm_eps(call.op), center=True)
    else:
        inner = _by_running_statistics(call, value, x, (mean, var), shape)
    return affine(call, inner, call.id("weight", 3), call.id("bias", 4), shape)


def _by_running_statistics(
    call: Call, value: int, x: Signal, running: tuple[Signal, Signal], shape: tuple[int, ...]
) -> MomentMap:
    mean, var = running
    gain = 1 / math.sqrt(max(var.field.mean, 0.0) + norm_eps(call.op))
    shift = replace(mean, field=reshaped(scaled(mean.field, -1.0), shape), slope=-mean.slope)
    moved = add_signals(call, x, expanded(shift, x.field.shape))
    nodes = None if moved.nodes is None else moved.nodes * gain
    out = replace(moved, field=scaled(moved.field, gain), slope=moved.slope * gain, nodes=nodes)
    return single_output(out, lambda grads: {value: new_noise(scaled(gradient_field(grads[0], out), gain))})


@moment_rule(assumes="channels of a group have one mean and one variance")
def group_norm(call: Call) -> MomentMap:
    """Group norm over the channels of a group and all positions."""
    value, x = call.read()
    groups = int(call.argument("num_groups", 1))
    batch, channels, *places = x.field.shape
    split = (batch, groups, channels // groups, *places)
    apart = replace(
        x,
        field=reshaped(x.field, split),
        source=None if x.source is None else reshaped(x.source, split),
    )
    inner = normalized(call, value, apart, range(2, len(split)), norm_eps(call.op), center=True)
    y = inner.outputs[0]
    whole = (
        None
        if y is None
        else replace(
            y,
            field=reshaped(y.field, x.field.shape),
            source=None if y.source is None else reshaped(y.source, x.field.shape),
        )
    )

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = reshaped(gradient_field(grads[0], whole or x), split)
        terms = inner.back([new_noise(g)])[value]
        return {value: tuple(replace(term, field=reshaped(term.field, x.field.shape)) for term in terms)}

    shape = (channels,) + (1,) * len(places)
    return affine(call, single_output(whole, back), call.id("weight", 2), call.id("bias", 3), shape)


@moment_rule(assumes="positions of a channel have one mean and one variance")
def instance_norm(call: Call) -> MomentMap:
    """Instance norm over the positions of each channel of each sample."""
    value, x = call.read()
    axes = range(2, len(x.field.shape))
    inner = normalized(call, value, x, axes, norm_eps(call.op), center=True)
    shape = (x.field.shape[1],) + (1,) * len(axes)
    return affine(call, inner, call.id("weight", 3), call.id("bias", 4), shape)


@moment_rule(assumes="the second moment averages itself")
def normalize(call: Call) -> MomentMap:
    r"""$y = x / \|x\|$ along an axis: an RMS norm times $1/\sqrt n$."""
    value, x = call.read()
    if float(call.argument("p", 1, 2.0)) != 2.0:
        raise UnpredictableError("a norm that is not Euclidean")
    axis = int(call.argument("dim", 2, 1)) % len(x.field.shape)
    inner = normalized(call, value, x, (axis,), 0.0, center=False)
    y = inner.outputs[0]
    if y is None:
        return inner
    factor = x.field.shape[axis] ** -0.5
    nodes = None if y.nodes is None else y.nodes * factor
    out = replace(y, field=scaled(y.field, factor), slope=y.slope * factor, nodes=nodes)
    return single_output(
        out, lambda grads: inner.back([new_noise(scaled(gradient_field(grads[0], out), factor))])
    )
