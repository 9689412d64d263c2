"""Moment rule of convolutions and transposed convolutions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from leadline.readings.theory.field import RandomField
from leadline.readings.theory.gradient import Terms, gradient_field, new_noise
from leadline.readings.theory.moment_rule import (
    Call,
    MomentMap,
    UnpredictableError,
    expanded,
    moment_rule,
    single_output,
)
from leadline.readings.theory.moments.arithmetic import add_signals
from leadline.readings.theory.signal import Signal, fluctuation


def _per_axis(argument: object, axes: int, default: int) -> list[int]:
    if isinstance(argument, list | tuple):
        return [int(each) for each in argument] * (axes if len(argument) == 1 else 1)
    return [default if not isinstance(argument, int) else argument] * axes


def _taps(size: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> list[float]:
    """For each tap along one axis, the share of windows in which it lies inside the image."""
    counts = [
        min(max(math.ceil((size - start) / stride), 0), out) - min(max(math.ceil(-start / stride), 0), out)
        for start in (tap * dilation - padding for tap in range(kernel))
    ]
    return [count / out if out else 0.0 for count in counts]


def _inside(size: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> float:
    """The mean number of taps of a window that lie inside the image, over all windows."""
    return sum(_taps(size, out, kernel, stride, padding, dilation))


def _axis_taps(call: Call, x: Signal, weight: Signal) -> list[list[float]]:
    """For each axis of positions, the shares of windows in which each tap lies inside the image."""
    axes = len(weight.field.shape) - 2
    kernel = weight.field.shape[2:]
    stride = _per_axis(call.argument("stride", 3), axes, 1)
    dilation = _per_axis(call.argument("dilation", 5), axes, 1)
    given = call.argument("padding", 4)
    if given == "same":
        padding = [(d * (k - 1)) // 2 for d, k in zip(dilation, kernel, strict=True)]
    else:
        padding = _per_axis(None if isinstance(given, str) else given, axes, 0)
    sizes, outs = x.field.shape[-axes:], call.output.shape[-axes:]
    return list(map(_taps, sizes, outs, kernel, stride, padding, dilation))


def _connections(call: Call, x: Signal, weight: Signal) -> float:
    """Number of products that an output element sums: channels per group times taps inside the image."""
    groups = int(call.argument("groups", 6, 1) or 1)
    taps = math.prod(sum(each) for each in _axis_taps(call, x, weight))
    return x.field.shape[1 - len(weight.field.shape)] / groups * taps


def _common_taps(call: Call, x: Signal, weight: Signal) -> tuple[float, ...]:
    r"""For each axis of positions, the share of taps that are inside the image in two windows and not only in one.

    With $f_t$ the share of windows with tap $t$ inside, $\sum_t f_t^2 / \sum_t f_t$: windows at the border share less.
    """
    taps = _axis_taps(call, x, weight)
    return tuple(sum(f * f for f in each) / sum(each) if sum(each) else 1.0 for each in taps)


def _scattered_taps(call: Call, weight: Signal) -> tuple[float, ...]:
    """The share of pairs of positions that the same taps reach, where a window is scattered over its positions.

    With a stride of $s$, taps reach only every $s$-th position along each axis; others get independent weights.
    """
    axes = len(weight.field.shape) - 2
    return (1 / math.prod(_per_axis(call.argument("stride", 3), axes, 1)),) * axes


def _transposed_connections(call: Call, x: Signal, weight: Signal) -> float:
    """As `_connections`, counted from the input: every input element reaches the taps that stay inside."""
    axes = len(weight.field.shape) - 2
    kernel = weight.field.shape[2:]
    stride = _per_axis(call.argument("stride", 3), axes, 1)
    padding = _per_axis(call.argument("padding", 4), axes, 0)
    dilation = _per_axis(call.argument("dilation", 7), axes, 1)
    sizes, outs = x.field.shape[-axes:], call.output.shape[-axes:]
    taps = math.prod(map(_inside, outs, sizes, kernel, stride, padding, dilation))
    spread = taps * math.prod(sizes) / math.prod(outs)
    groups = int(call.argument("groups", 6, 1) or 1)
    return x.field.shape[-axes - 1] / groups * spread


@moment_rule(assumes="weights are independent of the signal and of each other")
def convolution(call: Call) -> MomentMap:
    r"""A linear layer at every position, over $n = C_\text{in} k / \text{groups}$ taps without the zero padding:

    $$ E[y^2] = n\,E[W^2]\,q_x + n(n-1)\,E[W]^2 s_x + E[b^2], \qquad
       g_x^2 = n \frac{|y|}{|x|} E[W^2]\,g_y^2 $$
    with $|y| / |x|$ the number of outputs per input: every product is a connection in both directions. Different
    positions share what their windows share tap by tap: forward the taps inside the image, backward those that reach
    both positions.
    """
    (value, x), (_, weight) = call.read(0), call.read(1)
    bias_id = call.id("bias", 2)
    axes = len(weight.field.shape) - 2
    if len(x.field.shape) < axes + 1:
        raise UnpredictableError("a convolution of a tensor without channels")
    is_transposed = "transpose" in call.op.name
    n = (_transposed_connections if is_transposed else _connections)(call, x, weight)
    taps = () if is_transposed else _common_taps(call, x, weight)
    scattered = _scattered_taps(call, weight)
    channel = len(x.field.shape) - axes - 1
    field = _convolved(
        x.field, call.output.shape, channel, n, weight.field, scattered if is_transposed else taps
    )
    out = product = call.sources.gaussian(field, fluctuation(x))
    if bias_id is not None and bias_id in call.signals:
        bias = call.signals[bias_id]
        lifted = replace(
            bias,
            field=replace(
                bias.field,
                shape=(bias.field.shape[0],) + (1,) * axes,
                share=bias.field.share + (bias.field.ms,) * axes,
            ),
        )
        out = replace(add_signals(call, product, expanded(lifted, call.output.shape)), noise=product.noise)
    back_fan = n * math.prod(call.output.shape) / max(math.prod(x.field.shape), 1)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = gradient_field(grads[0], out)
        passed = _convolved(
            g, x.field.shape, channel, back_fan, weight.field, taps if is_transposed else scattered
        )
        return {value: new_noise(passed)}

    return single_output(out, back)


def _convolved(
    x: RandomField,
    shape: tuple[int, ...],
    channel: int,
    n: float,
    weight: RandomField,
    common_taps: tuple[float, ...] = (),
) -> RandomField:
    """The field of a sum of `n` products with weights, at every position; `common_taps` of them in two positions."""
    tilt = n * max(n - 1, 0.0) * weight.mean**2
    common = max(x.share[channel], 0.0) if x.shape[channel] > 1 else x.mean**2
    ms = n * weight.ms * x.ms + tilt * common
    share = []
    for axis, size in enumerate(shape):
        if size == 1:
            share.append(ms)
        elif axis == channel:
            share.append((n * weight.mean) ** 2 * common)
        else:
            place = axis - channel - 1
            both = common_taps[place] if 0 <= place < len(common_taps) else 1.0
            share.append(both * (n * weight.ms * x.share[axis] + tilt * min(common, max(x.share[axis], 0.0))))
    return RandomField(shape=shape, mean=n * weight.mean * x.mean, ms=ms, share=tuple(share))
