"""Moment rules of ops that join tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from leadline.readings.theory.field import RandomField, profile_of, reshaped
from leadline.readings.theory.gradient import Terms, gradient_field, new_noise
from leadline.readings.theory.moment_rule import (
    Call,
    MomentMap,
    UnpredictableError,
    moment_rule,
    single_output,
)
from leadline.readings.theory.position_profile import mixed, normalized_profile
from leadline.readings.theory.signal import Signal


@moment_rule()
def cat(call: Call) -> MomentMap:
    """Moments are weighted by size; along the joined axis pieces share only their means."""
    axis = int(call.argument("dim", 1, 0) or 0)
    return _joined(call, axis % max(len(call.output.shape), 1), stacked=False)


@moment_rule()
def stack(call: Call) -> MomentMap:
    """The tensors along a new axis."""
    axis = int(call.argument("dim", 1, 0) or 0)
    return _joined(call, axis % max(len(call.output.shape), 1), stacked=True)


def _joined(call: Call, axis: int, *, stacked: bool) -> MomentMap:
    shape = call.output.shape
    values = [value for value in call.op.inputs if math.prod(call.value(value).shape)]
    if any(value not in call.signals for value in values):
        raise UnpredictableError("nothing is known about a joined tensor")
    pieces = [_with_axis(call.signals[value], axis) if stacked else call.signals[value] for value in values]
    if any(len(piece.field.shape) != len(shape) for piece in pieces):
        raise UnpredictableError("pieces with different numbers of axes")
    sizes = [piece.field.shape[axis] for piece in pieces]
    if len(pieces) == 1 and not stacked:
        value = values[0]
        return single_output(pieces[0], lambda grads: {value: tuple(grads[0])})
    out = _mixture(call, pieces, sizes, axis)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = gradient_field(grads[0], out)
        contributions: dict[int, Terms] = {}
        first = 0
        for value, piece, size in zip(values, pieces, sizes, strict=True):
            own = _piece_of(g, piece.field.shape, axis, first)
            first += size
            contributions[value] = (
                *contributions.get(value, ()),
                *new_noise(reshaped(own, call.value(value).shape)),
            )
        return contributions

    return single_output(out, back)


def _piece_of(g: RandomField, shape: tuple[int, ...], axis: int, first: int) -> RandomField:
    """The gradient of the piece that begins at `first`."""
    profile, ratio = profile_of(g), 1.0
    if profile is not None and profile.axis == axis:
        ratio, profile = normalized_profile(axis, profile.weights[first : first + shape[axis]])
    ms = ratio * g.ms
    share = tuple(ms if size == 1 else ratio * s for size, s in zip(shape, g.share, strict=True))
    return RandomField(shape=shape, mean=g.mean, ms=ms, share=share, profile=profile)


def _with_axis(signal: Signal, axis: int) -> Signal:
    shape = signal.field.shape
    return replace(
        signal,
        field=reshaped(signal.field, (*shape[:axis], 1, *shape[axis:])),
        source=None if signal.source is None else reshaped(signal.source, (*shape[:axis], 1, *shape[axis:])),
    )


def _mixture(call: Call, pieces: Sequence[Signal], sizes: Sequence[int], axis: int) -> Signal:
    whole = sum(sizes)
    parts = [size / whole for size in sizes]

    def mean(values: Sequence[float]) -> float:
        return sum(part * value for part, value in zip(parts, values, strict=True))

    fields = [piece.field for piece in pieces]
    average = mean([field.mean for field in fields])
    share = [mean([field.share[each] for field in fields]) for each in range(len(call.output.shape))]
    pairs = sum(size * (size - 1) * field.share[axis] for size, field in zip(sizes, fields, strict=True))
    same = {piece.key for piece in pieces if piece.key >= 0}
    if len(same) == 1 and len(pieces) > 1:  # copies of one tensor: adjacent elements are alike
        crossed = fields[0].share[axis] * (whole**2 - sum(size**2 for size in sizes))
    else:
        crossed = sum(
            a * b * x.mean * y.mean
            for i, (a, x) in enumerate(zip(sizes, fields, strict=True))
            for j, (b, y) in enumerate(zip(sizes, fields, strict=True))
            if i != j
        )
    share[axis] = (pairs + crossed) / (whole * (whole - 1)) if whole > 1 else fields[0].ms
    profile = mixed((size * each.ms, profile_of(each)) for size, each in zip(sizes, fields, strict=True))
    if axis < len(share) - 1 and (profile is None or profile.axis == axis):
        lengths = zip(sizes, fields, strict=True)
        profile = normalized_profile(axis, [w for size, each in lengths for w in _sizes(each, axis, size)])[1]
    field = RandomField(
        shape=call.output.shape,
        mean=average,
        ms=mean([each.ms for each in fields]),
        share=tuple(share),
        profile=profile,
    )
    noise = sum((part**2) * piece.noise for part, piece in zip(parts, pieces, strict=True))
    return replace(call.sources.gaussian(field, noise), exact=all(piece.exact for piece in pieces))


def _sizes(field: RandomField, axis: int, size: int) -> list[float]:
    """The second moments along an axis."""
    profile = profile_of(field)
    weights = profile.weights if profile is not None and profile.axis == axis else (1.0,) * size
    return [field.ms * each for each in weights]


@moment_rule(assumes="the padding is a constant")
def pad(call: Call) -> MomentMap:
    """Elements inside a constant border."""
    value, x = call.read()
    shape = call.output.shape
    part = math.prod(x.field.shape) / max(math.prod(shape), 1)
    border = float(call.argument("value", 3, 0.0) or 0.0)
    if call.argument("mode", 2, "constant") != "constant":
        part = 1.0
    mean = part * x.field.mean + (1 - part) * border
    ms = part * x.field.ms + (1 - part) * border**2
    share = tuple(
        ms if size == 1 else part * s * (old / size if size else 1.0) + (1 - part) * border**2
        for size, old, s in zip(shape, x.field.shape, x.field.share, strict=True)
    )
    field = RandomField(shape=shape, mean=mean, ms=ms, share=share)
    out = call.sources.gaussian(field, x.noise)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = gradient_field(grads[0], out)
        share = tuple(g.ms if size == 1 else s for size, s in zip(x.field.shape, g.share, strict=True))
        return {value: new_noise(replace(g, shape=x.field.shape, share=share))}

    return single_output(out, back)
