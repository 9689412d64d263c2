"""Moment rules of ops that write into some of the elements of a tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from leadline.ops.arguments import value_of
from leadline.readings.theory.field import RandomField, broadcast, independent
from leadline.readings.theory.gradient import Terms, gradient_field, new_noise
from leadline.readings.theory.moment_rule import (
    Call,
    MomentMap,
    UnpredictableError,
    moment_rule,
    single_output,
)
from leadline.readings.theory.moments.pointwise import pulled_back
from leadline.readings.theory.signal import Signal, constant_signal
from leadline.readings.theory.write import (
    Region,
    gradient_of_kept,
    gradient_of_written,
    overwritten,
    region_of_shape,
    unwritten_share,
)


@moment_rule(assumes="indices are distinct, and writes fall on elements that were not written before")
def overwrite(call: Call) -> MomentMap:
    """Elements of another tensor, or a number, in a region of the tensor; the rest stays."""
    name, shape = call.op.name, call.output.shape
    if name == "zero":
        return single_output(constant_signal(shape, 0.0), lambda grads: {})
    if name in ("copy", "fill"):
        return _fill_all(call, *_written_value(call, "src" if name == "copy" else "value", 1), shape)
    return _fill_region(call, _find_region(call))


def _fill_all(call: Call, value: int | None, piece: Signal, shape: tuple[int, ...]) -> MomentMap:
    if value is None:
        return single_output(broadcast_signal(piece, shape), lambda grads: {})
    number = value
    return single_output(broadcast_signal(piece, shape), lambda grads: {number: pulled_back(grads[0], piece)})


def broadcast_signal(signal: Signal, shape: tuple[int, ...]) -> Signal:
    if signal.field.shape == shape:
        return signal
    source = None if signal.source is None else broadcast(signal.source, shape)
    return replace(signal, field=broadcast(signal.field, shape), source=source)


def _fill_region(call: Call, region: Region) -> MomentMap:
    base_id, base = call.read()
    position, keyword = _VALUE_PLACES[call.op.name]
    value, piece = _written_value(call, keyword, position)
    out = overwritten(call.sources, base, piece.field, region, piece.noise)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = gradient_field(grads[0], out)
        contributions = {base_id: new_noise(gradient_of_kept(g, base, region))}
        if value is not None:
            contributions[value] = new_noise(gradient_of_written(g, piece.field, region))
        return contributions

    return single_output(out, back)


# Where each op takes what it writes: position and keyword.
_VALUE_PLACES = {
    "setitem": (2, "value"),
    "index_put": (2, "values"),
    "index_copy": (3, "source"),
    "index_fill": (3, "value"),
    "scatter": (3, "src"),
    "masked_scatter": (2, "source"),
}


def _written_value(call: Call, keyword: str, position: int) -> tuple[int | None, Signal]:
    """Id and signal of what is written; a number has no id."""
    argument = call.argument(keyword, position)
    if argument is None and keyword == "src":
        argument = call.argument("value", position)
    value = value_of(argument)
    if value is None:
        if isinstance(argument, bool) or not isinstance(argument, int | float):
            raise UnpredictableError(f"{call.op.name} writes something that is not known")
        return None, constant_signal((), float(argument))
    if value not in call.signals:
        raise UnpredictableError(f"nothing is known about what {call.op.name} writes")
    return value, call.signals[value]


def _find_region(call: Call) -> Region:
    """The region that an op writes; indices are taken to be distinct."""
    name, shape = call.op.name, call.output.shape
    if name == "setitem":
        return _region_of_index(call, call.argument("indices", 1), shape)
    if name in ("index_copy", "index_fill"):
        axis = int(call.argument("dim", 1)) % max(len(shape), 1)
        index = call.id("index", 2)
        count = 1 if index is None else math.prod(call.value(index).shape)
        return Region(
            extents=tuple(min(count, size) if each == axis else size for each, size in enumerate(shape))
        )
    if name == "scatter" and (index := call.id("index", 2)) is not None:
        return Region(extents=tuple(map(min, call.value(index).shape, shape)), axes=tuple(range(len(shape))))
    raise UnpredictableError(f"{name} writes elements that depend on their values")


def _region_of_index(call: Call, index: Any, shape: tuple[int, ...]) -> Region:
    parts = [each for each in (index if isinstance(index, list) else [index]) if each is not None]
    own = sum(each != "..." for each in parts)
    extents: list[int] = []
    dropped: list[int] = []
    for each in parts:
        if each == "...":
            extents += shape[len(extents) : len(extents) + len(shape) - own]
            continue
        if isinstance(each, int):
            dropped.append(len(extents))
        extents.append(_extent(call, each, shape[len(extents)]))
    extents += shape[len(extents) :]
    return Region(extents=tuple(extents), dropped=tuple(dropped))


def _extent(call: Call, part: Any, size: int) -> int:
    """How many positions of an axis an index covers."""
    if isinstance(part, dict):
        start, stop, step = part["slice"]
        if any(isinstance(each, str) for each in (start, stop, step)):
            raise UnpredictableError("a slice whose ends are not known")
        return len(range(size)[slice(start, stop, step)])
    value = value_of(part)
    if value is None:
        return 1
    if call.value(value).dtype == "bool":
        raise UnpredictableError("the written elements depend on a mask")
    return min(math.prod(call.value(value).shape), size)


@moment_rule(
    assumes="added rows are independent of what they are added to, and indices hit every row about as often"
)
def accumulate(call: Call) -> MomentMap:
    r"""Rows added at indices: $E[y^2] = E[x^2] + h\,E[s^2] + 2h\,\bar x \bar s + h(h-1)^+\,\bar s^2$ with $h$ hits.

    $h$ is the number of added elements over the number of elements: below 1, that share of the elements is hit once.
    """
    base_id, base = call.read()
    value, piece = _written_value(call, "source" if call.op.name == "index_add" else "src", 3)
    shape, alpha = call.output.shape, float(call.argument("alpha", 4, 1.0) or 1.0)
    hits = piece.field.count / max(math.prod(shape), 1)
    mean, square = alpha * piece.field.mean, alpha * alpha * piece.field.ms
    pairs = hits * max(hits - 1, 0.0) * mean * mean
    ms = base.field.ms + hits * square + 2 * hits * base.field.mean * mean + pairs
    field = independent(shape, base.field.mean + hits * mean, ms)
    blank = max(unwritten_share(base) - hits, 0.0)
    noise = max(base.noise, piece.noise)
    value_before = base.blank_value if base.blank else base.field.mean
    out = replace(
        call.sources.gaussian(field, noise),
        blank=blank,
        blank_value=value_before,
        uninitialized=base.uninitialized,
    )

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = gradient_field(grads[0], out)
        contributions = {base_id: new_noise(g)}
        if value is not None:
            written = gradient_of_written(g, piece.field, region_of_shape(shape, piece.field.shape))
            contributions[value] = new_noise(_scaled(written, alpha))
        return contributions

    return single_output(out, back)


def _scaled(field: RandomField, factor: float) -> RandomField:
    square = factor * factor
    return replace(
        field,
        mean=field.mean * factor,
        ms=field.ms * square,
        share=tuple(each * square for each in field.share),
    )
