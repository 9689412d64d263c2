"""Moment rules of ops that select, repeat or window elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from leadline.ops.arguments import value_of
from leadline.readings.theory.field import (
    RandomField,
    broadcast,
    profile_of,
    reshaped,
    scaled,
    sum_profile,
)
from leadline.readings.theory.gradient import (
    Terms,
    gradient_field,
    new_noise,
    new_radial_noise,
    radial_part,
)
from leadline.readings.theory.moment_rule import (
    Call,
    MomentMap,
    UnpredictableError,
    moment_rule,
    single_output,
)
from leadline.readings.theory.moments.pointwise import pulled_back
from leadline.readings.theory.moments.topk import find_gathered_topk, select_largest
from leadline.readings.theory.position_profile import PositionProfile, normalized_profile
from leadline.readings.theory.signal import Signal, rearranged

Kept = tuple[int, Sequence[int]]
"""An axis and its positions that were selected."""


def selection(
    call: Call, axes: Sequence[int | None], places: Callable[[int], Kept | None] = lambda place: None
) -> MomentMap:
    """The moment map of a part of the elements; `axes` gives the original axis of each axis of the result.

    Moments stay. Elements that were not selected have no gradient, so that its mean square falls by the selected share.
    """
    value, x = call.read()
    outs = []
    for place, shape in enumerate(call.shapes):
        tag = f"{call.op.name} {call.op.args[1:]} {sorted(call.op.kwargs.items())} {place}"
        kept = places(place)
        part = rearranged(x, lambda f, shape=shape, kept=kept: _selected_field(f, shape, axes, kept))  # type: ignore[misc]
        part = _rescaled(part)
        same = math.prod(shape) == math.prod(x.field.shape)
        outs.append(part if same else replace(part, key=call.sources.view(x.key, tag)))
    back_axes = {old: new for new, old in enumerate(axes) if old is not None}

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        fields: list[RandomField] = []
        radial: dict[int, float] = {}
        for place, (terms, out) in enumerate(zip(grads, outs, strict=True)):
            if terms:
                fields.append(_scattered(gradient_field(terms, out), x.field, back_axes, places(place)))
                part = math.sqrt(out.field.count / max(x.field.count, 1))
                for each, size in radial_part(terms, out).items():
                    radial[each] = radial.get(each, 0.0) + part * size
        if not fields:
            return {}
        return {value: new_radial_noise(_sum(fields), x, radial)}

    return MomentMap(outputs=tuple(outs), back=back)


def _rescaled(part: Signal) -> Signal:
    """The signal with the slope that belongs to its variance, after positions of another size were selected."""
    if part.nodes is not None or part.deterministic:
        return part
    return replace(part, slope=math.copysign(math.sqrt(part.field.var), part.slope))


def _selected_field(
    field: RandomField, shape: tuple[int, ...], axes: Sequence[int | None], kept: Kept | None
) -> RandomField:
    share = tuple(
        field.ms if size == 1 else field.ms if axis is None else field.share[axis]
        for size, axis in zip(shape, axes, strict=True)
    )
    ms, profile = field.ms, profile_of(field)
    if profile is not None:
        weights: Sequence[float] = profile.weights
        size, chosen = 1.0, kept is not None and kept[0] == profile.axis
        if kept is not None and chosen:
            weights = [weights[each] for each in kept[1]]
        new = axes.index(profile.axis) if profile.axis in axes else None
        pairs = None if chosen else profile.pairs
        size, profile = normalized_profile(0 if new is None else new, weights)
        profile = None if new is None or len(weights) != shape[new] else profile
        profile = None if profile is None else profile._replace(pairs=pairs)
        if chosen and math.isfinite(size):
            ms, share = ms * size, tuple(each * size for each in share)
    return RandomField(shape=shape, mean=field.mean, ms=ms, share=share, profile=profile)


def _scattered_profile(
    g: RandomField, like: RandomField, axes: Mapping[int, int], kept: Kept | None
) -> PositionProfile | None:
    """The profile of a gradient that is zero where nothing was selected; a profile along another axis stays."""
    own = profile_of(g)
    back = {new: old for old, new in axes.items()}
    if own is not None and (kept is None or back.get(own.axis) != kept[0]):
        old = back.get(own.axis)
        fits = old is not None and like.shape[old] == len(own.weights)
        return PositionProfile(old, own.weights, own.pairs) if fits and old is not None else None
    if kept is None or kept[0] == len(like.shape) - 1 or len(kept[1]) == like.shape[kept[0]]:
        return None
    sizes = [0.0] * like.shape[kept[0]]
    for place, each in enumerate(kept[1]):
        sizes[each] += 1.0 if own is None else own.weights[place]
    return normalized_profile(kept[0], sizes)[1]


def _scattered(g: RandomField, like: RandomField, axes: Mapping[int, int], kept: Kept | None) -> RandomField:
    """A gradient that is zero at the elements that were not selected."""
    part = math.prod(g.shape) / max(math.prod(like.shape), 1)
    share = []
    for axis, size in enumerate(like.shape):
        new = axes.get(axis)
        length = 1 if new is None else g.shape[new]
        inner = g.ms if new is None else g.share[new]
        others = part / (length / size) if length else 0.0
        pairs = length * (length - 1) / (size * (size - 1)) if size > 1 else 1.0
        share.append(others * pairs * inner if size > 1 else part * g.ms)
    profile = _scattered_profile(g, like, axes, kept)
    return RandomField(
        shape=like.shape, mean=part * g.mean, ms=part * g.ms, share=tuple(share), profile=profile
    )


def _sum(fields: Sequence[RandomField]) -> RandomField:
    share = tuple(map(sum, zip(*(each.share for each in fields), strict=True)))
    return RandomField(
        shape=fields[0].shape,
        mean=sum(each.mean for each in fields),
        ms=sum(each.ms for each in fields),
        share=share,
        profile=sum_profile(fields),
    )


@moment_rule()
def getitem(call: Call) -> MomentMap:
    """Indexing by integers, slices, new axes, and by tensors of indices or booleans."""
    _, x = call.read()
    index = call.argument("indices", 1)
    kept = _kept_places(call, x.field.shape, index)
    return selection(call, _axes_of_index(call, x, index), lambda place: kept)


def _kept_places(call: Call, shape: tuple[int, ...], index: Any) -> Kept | None:
    """The axis, other than the last, from which an index by integers and slices takes a part, and its places."""
    parts = index if isinstance(index, list) else [index]
    consumed = sum(_consumes(call, each) for each in parts if each != "..." and each is not None)
    axis = 0
    for each in parts:
        if each is None:
            continue
        if each == "...":
            axis += len(shape) - consumed
            continue
        if isinstance(each, int) and not isinstance(each, bool) and axis < len(shape) - 1:
            return axis, [each % shape[axis]]
        if isinstance(each, dict) and "slice" in each and axis < len(shape) - 1:
            bounds = each["slice"]
            if all(bound is None or isinstance(bound, int) for bound in bounds):
                places = range(shape[axis])[slice(*bounds)]
                if 0 < len(places) < shape[axis]:
                    return axis, places
        axis += _consumes(call, each)
    return None


def _axes_of_index(call: Call, x: Signal, index: Any) -> list[int | None]:
    parts = index if isinstance(index, list) else [index]
    rank, out = len(x.field.shape), len(call.output.shape)
    consumed = sum(_consumes(call, each) for each in parts if each != "..." and each is not None)
    axes: list[int | None] = []
    axis = 0
    advanced: int | None = None
    for each in parts:
        if each is None:
            axes.append(None)
        elif each == "...":
            axes += range(axis, axis + rank - consumed)
            axis += rank - consumed
        elif isinstance(each, dict):
            axes.append(axis)
            axis += 1
        elif isinstance(each, int) and not isinstance(each, bool):
            axis += 1
        else:
            advanced = len(axes) if advanced is None else advanced
            axis += _consumes(call, each)
    axes += range(axis, rank)
    if advanced is not None:
        extra = out - len(axes)
        first = next((a for a in range(rank) if a not in axes), 0)
        axes[advanced:advanced] = [first] * max(extra, 0)
    if len(axes) != out:
        raise UnpredictableError(f"an index of {out} axes out of {rank}")
    return axes


def _consumes(call: Call, part: Any) -> int:
    value = value_of(part)
    if value is not None and call.value(value).dtype == "bool":
        return len(call.value(value).shape)
    return 1


@moment_rule()
def select(call: Call) -> MomentMap:
    """One position along an axis."""
    _, x = call.read()
    axis = int(call.argument("dim", 1)) % len(x.field.shape)
    index = call.argument("index", 2)
    places = [index % x.field.shape[axis]] if isinstance(index, int) else None
    rest = [each for each in range(len(x.field.shape)) if each != axis]
    return selection(call, rest, lambda place: None if places is None else (axis, places))


@moment_rule()
def subset(call: Call) -> MomentMap:
    """Pieces along an axis; all axes stay. Selection by size or by a triangle is not predicted."""
    value, x = call.read()
    gathered_topk = find_gathered_topk(call) if call.op.name in ("gather", "take_along_dim") else None
    if gathered_topk is not None:
        axis, largest = gathered_topk
        return select_largest(call, x, value, axis, largest=largest)
    if call.op.name in ("sort", "tril", "triu"):
        raise UnpredictableError(f"{call.op.name} selects by value or position")
    return selection(call, list(range(len(x.field.shape))))


@moment_rule()
def unbind(call: Call) -> MomentMap:
    """All positions along an axis, each as a tensor."""
    _, x = call.read()
    axis = int(call.argument("dim", 1, 0)) % len(x.field.shape)
    rest = [each for each in range(len(x.field.shape)) if each != axis]
    return selection(call, rest, lambda place: (axis, [place]))


@moment_rule()
def expand(call: Call) -> MomentMap:
    """Copies along an axis: the gradient is their sum."""
    value, x = call.read()
    shape = call.output.shape
    out = rearranged(x, lambda f: broadcast(f, shape))
    return single_output(out, lambda grads: {value: pulled_back(grads[0], x)})


@moment_rule()
def repeat(call: Call) -> MomentMap:
    """Copies one after the other: pairs of copies share everything."""
    value, x = call.read()
    shape = call.output.shape
    old = (1,) * (len(shape) - len(x.field.shape)) + x.field.shape
    if len(old) != len(shape):
        raise UnpredictableError("a repetition that flattens the tensor")
    flat = reshaped(x.field, old)
    times = [new // size if size else 1 for new, size in zip(shape, old, strict=True)]
    share = tuple(
        flat.ms if new == 1 else ((size - 1) * count * s + (count - 1) * flat.ms) / (new - 1)
        for new, size, count, s in zip(shape, old, times, flat.share, strict=True)
    )
    key = call.sources.view(x.key, f"{call.op.name} {call.op.args[1:]}")
    out = replace(x, field=RandomField(shape=shape, mean=flat.mean, ms=flat.ms, share=share), key=key)
    if x.nodes is not None:
        out = replace(call.sources.gaussian(out.field, x.noise), exact=x.exact)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = gradient_field(grads[0], out)
        n = math.prod(times)
        ms = n * g.ms
        for axis, count in enumerate(times):
            ms += n * (count - 1) * max(g.share[axis], 0.0)
        share = tuple(ms if size == 1 else n * s for size, s in zip(old, g.share, strict=True))
        field = RandomField(shape=old, mean=n * g.mean, ms=ms, share=share)
        return {value: new_noise(reshaped(field, x.field.shape))}

    return single_output(out, back)


@moment_rule(assumes="windows are like the whole tensor")
def windows(call: Call) -> MomentMap:
    """Overlapping windows: the moments of the whole tensor; gradients add up over the windows that read an element."""
    value, x = call.read()
    shape = call.output.shape
    field = RandomField(
        shape=shape,
        mean=x.field.mean,
        ms=x.field.ms,
        share=tuple(x.field.ms if size == 1 else x.field.mean**2 for size in shape),
    )
    out = call.sources.gaussian(field, x.noise)
    times = math.prod(shape) / max(math.prod(x.field.shape), 1)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = gradient_field(grads[0], out)
        flat = RandomField(shape=x.field.shape, mean=0.0, ms=g.ms, share=(0.0,) * len(x.field.shape))
        return {value: new_noise(scaled(flat, math.sqrt(times)))}

    return single_output(out, back)
