"""Moment rules of pooling over windows, and of resizing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from msgspec.structs import replace
from torch import Tensor

from leadline.readings.theory import quadrature
from leadline.readings.theory.field import RandomField
from leadline.readings.theory.gradient import Terms, gradient_field, new_noise
from leadline.readings.theory.moment_rule import (
    Call,
    MomentMap,
    UnpredictableError,
    moment_rule,
    single_output,
)
from leadline.readings.theory.signal import Signal, nodes_of


def _axes(call: Call) -> int:
    return int(next(letter for letter in call.op.name if letter.isdigit()))


def _window(call: Call, x: Signal) -> int:
    """Number of positions in a window."""
    axes = _axes(call)
    if call.op.name.startswith("adaptive"):
        before, after = x.field.shape[-axes:], call.output.shape[-axes:]
        return max(round(math.prod(before) / max(math.prod(after), 1)), 1)
    size = call.argument("kernel_size", 1)
    return math.prod(size) if isinstance(size, list) else int(size) ** axes


def _pooled(field: RandomField, shape: tuple[int, ...], mean: float, ms: float) -> RandomField:
    ratio = ms / field.ms if field.ms else 1.0
    center = mean**2
    share = tuple(
        ms if size == 1 else min(max(center, s * ratio), ms)
        for size, s in zip(shape, field.share, strict=True)
    )
    return RandomField(shape=shape, mean=mean, ms=ms, share=share)


@moment_rule(assumes="positions of a window are alike")
def average_pool(call: Call) -> MomentMap:
    r"""The mean of $k$ positions: $E[y^2] = \frac1k q + \frac{k-1}{k} s$; $g_x = g_y/k$ per window that reads it.

    It is at least $\mu^2$, also where each of several norms before left positions that share less than nothing.
    """
    value, x = call.read()
    axes = _axes(call)
    k = _window(call, x)
    s = sum(x.field.share[-axes:]) / axes
    ms = max(x.field.ms / k + (k - 1) / k * s, x.field.mean**2)
    places = tuple(
        ms if size == 1 else each
        for size, each in zip(call.output.shape[-axes:], x.field.share[-axes:], strict=True)
    )
    others = tuple(
        ms if size == 1 else each / k + (k - 1) / k * min(max(each, 0.0), max(s, 0.0))
        for size, each in zip(call.output.shape[:-axes], x.field.share[:-axes], strict=True)
    )
    field = RandomField(shape=call.output.shape, mean=x.field.mean, ms=ms, share=others + places)
    out = call.sources.gaussian(field, x.noise)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = gradient_field(grads[0], out)
        reads = k * math.prod(call.output.shape) / max(math.prod(x.field.shape), 1)
        factor = reads / k**2
        share = tuple(
            factor * g.ms
            if size == 1 or (axis >= len(x.field.shape) - axes and g.shape[axis] == 1)
            else factor * each
            for axis, (size, each) in enumerate(zip(x.field.shape, g.share, strict=True))
        )
        return {
            value: new_noise(RandomField(shape=x.field.shape, mean=g.mean / k, ms=factor * g.ms, share=share))
        }

    return single_output(out, back)


@lru_cache(maxsize=64)
def _max_density(k: int) -> Tensor:
    r"""Density of the largest of $k$ standard Gaussians, relative to that of one: $k\,\Phi(z)^{k-1}$ at the nodes."""
    density: Tensor = k * torch.special.ndtr(quadrature.nodes()).pow(k - 1)
    return density


@moment_rule(assumes="positions of a window are independent")
def max_pool(call: Call) -> MomentMap:
    r"""The largest of $k$ independent positions, $E[y^m] = \int x(z)^m\,k\,\Phi(z)^{k-1}\,Dz$ for increasing $x(z)$.

    For positions with a correlation $\rho$: $z = \sqrt\rho\,u + \sqrt{1-\rho}\,w$ with a common $u$, whose part of the
    second moment is that of one position. Each output sends its gradient to one position.
    """
    value, x = call.read()
    axes = _axes(call)
    k = _window(call, x)
    points, density = nodes_of(x), _max_density(k)
    apart, square = (
        quadrature.product_mean(points, density),
        quadrature.product_mean(points.square(), density),
    )
    rho = max(sum(x.correlations[-axes:]) / axes, 0.0)
    mean = math.sqrt(1 - rho) * apart + (1 - math.sqrt(1 - rho)) * x.field.mean
    ms = (1 - rho) * square + rho * x.field.ms
    out = call.sources.gaussian(_pooled(x.field, call.output.shape, mean, max(ms, mean**2)), x.noise)
    outs: tuple[Signal | None, ...] = (out, *(None for _ in call.op.outputs[1:]))

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = gradient_field(grads[0], out)
        part = math.prod(call.output.shape) / max(math.prod(x.field.shape), 1)
        share = tuple(
            part * g.ms if size == 1 else part * part * each
            for size, each in zip(x.field.shape, g.share, strict=True)
        )
        return {
            value: new_noise(
                RandomField(shape=x.field.shape, mean=part * g.mean, ms=part * g.ms, share=share)
            )
        }

    return MomentMap(outputs=outs, back=back)


@moment_rule(assumes="the image is as rough as its pixels")
def interpolate(call: Call) -> MomentMap:
    """Nearest-neighbor interpolation makes copies; modes that average neighbors are not predicted."""
    value, x = call.read()
    if call.argument("mode", 3, "nearest") not in ("nearest", "nearest-exact"):
        raise UnpredictableError("an interpolation that averages neighbors")
    shape = call.output.shape
    times = math.prod(shape) / max(math.prod(x.field.shape), 1)
    share = tuple(x.field.ms if size == 1 else s for size, s in zip(shape, x.field.share, strict=True))
    out = replace(call.sources.gaussian(replace(x.field, shape=shape, share=share), x.noise), exact=x.exact)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = gradient_field(grads[0], out)
        ms = times * g.ms + times * max(times - 1, 0.0) * max(g.share[-1], 0.0)
        back_share = tuple(
            ms if size == 1 else times**2 * s for size, s in zip(x.field.shape, g.share, strict=True)
        )
        return {value: new_noise(RandomField(shape=x.field.shape, mean=0.0, ms=ms, share=back_share))}

    return single_output(out, back)
