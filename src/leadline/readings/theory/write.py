r"""Writes into a region of a tensor: the field of the whole tensor, and how its gradient divides.

A tensor that is allocated first and filled region by region is the mixture of what was written into it. With $p$ the
share of the written elements, the moments become $E[x^2] - r + p\,E[s^2]$, where $r$ is the part of the replaced
elements. Writes are taken to fall on blank elements, those that still hold what the tensor was created with, as long as
there are any: programs fill a tensor without overlap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from leadline.readings.theory.field import RandomField, unbroadcast
from leadline.readings.theory.gradient import Terms, gradient_field, new_noise
from leadline.readings.theory.moment_rule import Call, MomentMap
from leadline.readings.theory.signal import MIN_RELATIVE_VARIANCE, Signal, Sources
from leadline.records.trace import CHANGED_THROUGH_VIEW

# Derived: shares are quotients of element counts; smaller remainders are rounding.
MAX_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """The elements that a write replaces."""

    extents: tuple[int, ...]
    """How many positions of each axis of the tensor it covers."""
    axes: tuple[int | None, ...] | None = None
    """The axis of the written piece for each axis of the tensor, None if it has none; if not given, the last ones."""
    dropped: tuple[int, ...] = ()
    """Without `axes`: those of the tensor that the piece lacks because an integer chose one position."""

    def share(self, shape: Sequence[int]) -> float:
        return math.prod(self.extents) / max(math.prod(shape), 1)

    def share_of(self, piece: RandomField, axis: int) -> float:
        """What the written elements share along an axis of the tensor."""
        own = self._aligned_axis(piece, axis) if self.axes is None else self.axes[axis]
        if own is None or not 0 <= own < len(piece.shape) or piece.shape[own] == 1:
            return piece.ms
        return piece.share[own]

    def _aligned_axis(self, piece: RandomField, axis: int) -> int | None:
        later = [each for each in range(axis, len(self.extents)) if each not in self.dropped]
        return None if axis in self.dropped else len(piece.shape) - len(later)


def region_of_shape(shape: Sequence[int], piece: Sequence[int]) -> Region:
    """The region that a view of this shape covers: the axes that it lost have a single position."""
    if len(shape) == len(piece):
        return Region(extents=tuple(map(min, piece, shape)), axes=tuple(range(len(shape))))
    axes: list[int | None] = []
    place = 0
    for axis, size in enumerate(shape):
        left_over = len(shape) - axis > len(piece) - place
        if place < len(piece) and (piece[place] == size or not left_over):
            axes.append(place)
            place += 1
        else:
            axes.append(None)
    extents = tuple(
        1 if own is None else min(piece[own], size) for own, size in zip(axes, shape, strict=True)
    )
    return Region(extents=extents, axes=tuple(axes))


def unwritten_share(signal: Signal) -> float:
    """Share of the elements that still hold what the tensor was created with: all of a constant."""
    is_constant = signal.field.var <= MIN_RELATIVE_VARIANCE * signal.field.ms
    return 1.0 if is_constant and not signal.blank else signal.blank


def reads_uninitialized(signal: Signal) -> bool:
    """Whether some elements hold arbitrary memory."""
    return signal.uninitialized and signal.blank > MAX_ROUNDING


def overwritten(sources: Sources, base: Signal, piece: RandomField, region: Region, noise: float) -> Signal:
    """The signal of `base` after `piece`, broadcast to the region, was written into it."""
    shape = base.field.shape
    part, blank = region.share(shape), unwritten_share(base)
    on_blank = min(part, blank)
    value = base.blank_value if base.blank else base.field.mean
    kept = max(1 - blank - (part - on_blank), 0.0)
    rest = blank - on_blank if blank - on_blank > MAX_ROUNDING else 0.0
    written = 1 - blank
    mean = rest * value + part * piece.mean
    ms = rest * value**2 + part * piece.ms
    if written > MAX_ROUNDING:  # what earlier writes left, in proportion to how much of it stays
        mean += kept / written * (base.field.mean - blank * value)
        ms += kept / written * (base.field.ms - blank * value**2)
    share = tuple(_share_along(axis, base, piece, region, ms) for axis in range(len(shape)))
    field = RandomField(shape=shape, mean=mean, ms=max(ms, mean * mean), share=share)
    out = sources.gaussian(field, max(base.noise, noise))
    return replace(out, blank=rest, blank_value=value, uninitialized=base.uninitialized and rest > 0)


def _share_along(axis: int, base: Signal, piece: RandomField, region: Region, ms: float) -> float:
    """What neighbors along an axis share: pairs inside the region, outside of it, and across its border."""
    size, extent = base.field.shape[axis], region.extents[axis]
    if size == 1:
        return ms
    others = region.share(base.field.shape) / (extent / size) if extent else 0.0
    inside = others * extent * (extent - 1) / (size * (size - 1))
    across = others * 2 * extent * (size - extent) / (size * (size - 1))
    outside = 1 - inside - across
    return (
        inside * region.share_of(piece, axis)
        + across * piece.mean * base.field.mean
        + outside * base.field.share[axis]
    )


def gradient_of_kept(g: RandomField, base: Signal, region: Region) -> RandomField:
    """The gradient of the tensor before the write, over the elements that had been written by then.

    Those are not overwritten while there are blank ones, so that their gradient stays; else it is zero in the region.
    """
    blank, part = unwritten_share(base), region.share(base.field.shape)
    kept = 1 - blank - max(part - blank, 0.0)
    left = max(kept, 0.0) / (1 - blank) if blank < 1 else 1.0
    return RandomField(
        shape=g.shape, mean=left * g.mean, ms=left * g.ms, share=tuple(left * each for each in g.share)
    )


def gradient_of_written(g: RandomField, piece: RandomField, region: Region) -> RandomField:
    """The gradient of what was written: that of its region, summed where the piece was broadcast."""
    inner = RandomField(
        shape=region.extents,
        mean=g.mean,
        ms=g.ms,
        share=tuple(g.ms if size == 1 else each for size, each in zip(region.extents, g.share, strict=True)),
    )
    if region.axes is None:
        left = [axis for axis in range(len(region.extents)) if axis not in region.dropped]
        inner = RandomField(
            shape=tuple(region.extents[axis] for axis in left),
            mean=g.mean,
            ms=g.ms,
            share=tuple(inner.share[axis] for axis in left),
        )
        return unbroadcast(_squeezed(inner, len(piece.shape)), piece.shape)
    kept = [axis for axis, own in enumerate(region.axes) if own is not None]
    return RandomField(
        shape=piece.shape, mean=g.mean, ms=g.ms, share=tuple(inner.share[axis] for axis in kept)
    )


def _squeezed(field: RandomField, rank: int) -> RandomField:
    """The field with as many leading axes of length one as a piece of this rank has."""
    extra = len(field.shape) - rank
    if extra < 0:
        shape, share = (1,) * -extra + field.shape, (field.ms,) * -extra + field.share
        return RandomField(shape=shape, mean=field.mean, ms=field.ms, share=share)
    while extra > 0 and field.shape[0] == 1:
        field = RandomField(shape=field.shape[1:], mean=field.mean, ms=field.ms, share=field.share[1:])
        extra -= 1
    return field


def write_through_view(call: Call, moment_map: MomentMap) -> MomentMap:
    """Complete the map of an op that changed a view in place: the tensor behind the view has changed with it."""
    if len(call.op.outputs) != len(moment_map.outputs) + 1:
        return moment_map
    whole, view = call.value(call.op.outputs[-1]), moment_map.outputs[0]
    base_id = call.op.inputs[-1]
    base = call.signals.get(base_id)
    if whole.unobserved != CHANGED_THROUGH_VIEW or view is None or base is None:
        return moment_map
    region = region_of_shape(base.field.shape, view.field.shape)
    out = overwritten(call.sources, base, view.field, region, view.noise)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        own, rest = tuple(grads[0]), grads[-1]
        if not rest:
            return moment_map.back(grads[:-1])
        g = gradient_field(rest, out)
        own = (*own, *new_noise(gradient_of_written(g, view.field, region)))
        contributions = dict(moment_map.back((own, *grads[1:-1])))
        kept = new_noise(gradient_of_kept(g, base, region))
        contributions[base_id] = (*contributions.get(base_id, ()), *kept)
        return contributions

    return MomentMap(outputs=(*moment_map.outputs, out), back=back)
