"""Moment rules of ops that move elements without changing them."""

from __future__ import annotations

from msgspec.structs import replace

from leadline.readings.theory.field import RandomField, permuted, reshaped
from leadline.readings.theory.gradient import gradient_field, new_noise
from leadline.readings.theory.moment_rule import (
    Call,
    MomentMap,
    moment_rule,
    rearrangement,
    single_output,
)


@moment_rule()
def reshape(call: Call) -> MomentMap:
    """Another shape, floating-point dtype or memory layout."""
    _, x = call.read()
    before, after = x.field.shape, call.output.shape
    return rearrangement(call, lambda f: reshaped(f, after), lambda f: reshaped(f, before))


@moment_rule()
def detach(call: Call) -> MomentMap:
    """The same elements, without a gradient."""
    _, x = call.read()
    return single_output(x, lambda grads: {})


@moment_rule()
def transpose(call: Call) -> MomentMap:
    """Axes in another order."""
    order = _order(call)
    back = [order.index(axis) for axis in range(len(order))]
    return rearrangement(call, lambda f: permuted(f, order), lambda f: permuted(f, back))


def _order(call: Call) -> list[int]:
    rank = len(call.read()[1].field.shape)
    axes = list(range(rank))
    name = call.op.name
    if name == "permute":
        return [int(axis) % rank for axis in call.sequence("dims", 1) or ()]
    if name in ("t", "T", "H"):
        return axes[::-1]
    if name in ("mT", "mH"):
        first, second = -1, -2
    elif name in ("movedim", "moveaxis"):
        return _moved(call, axes)
    else:
        first, second = (int(call.argument(word, place)) for word, place in (("dim0", 1), ("dim1", 2)))
    axes[first], axes[second] = axes[second], axes[first]
    return axes


def _moved(call: Call, axes: list[int]) -> list[int]:
    old, new = (call.argument(word, place) for word, place in (("source", 1), ("destination", 2)))
    olds = [int(each) % len(axes) for each in (old if isinstance(old, list) else [old])]
    news = [int(each) % len(axes) for each in (new if isinstance(new, list) else [new])]
    rest = [axis for axis in axes if axis not in olds]
    for axis, place in sorted(zip(olds, news, strict=True), key=lambda pair: pair[1]):
        rest.insert(place, axis)
    return rest


@moment_rule()
def shuffle(call: Call) -> MomentMap:
    """Elements at other positions: equal in distribution, but with a new source."""
    value, x = call.read()
    before, after = x.field.shape, call.output.shape
    shuffled = rearrangement(call, lambda f: _alike(f, after), lambda f: _alike(f, before))
    out = shuffled.outputs[0]
    tag = f"{call.op.name} {call.op.args[1:]} {call.op.kwargs}"
    if out is None or out.key < 0:
        return shuffled
    moved = replace(out, key=call.sources.view(x.key, tag))
    return single_output(
        moved, lambda grads: {value: new_noise(_alike(gradient_field(grads[0], moved), before))}
    )


def _alike(field: RandomField, shape: tuple[int, ...]) -> RandomField:
    if len(shape) == len(field.shape):
        share = tuple(
            field.ms if size == 1 else value if old > 1 else field.mean**2
            for size, old, value in zip(shape, field.shape, field.share, strict=True)
        )
        return RandomField(shape=shape, mean=field.mean, ms=field.ms, share=share)
    return reshaped(field, shape)
