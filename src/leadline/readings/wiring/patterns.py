"""Two patterns of ops that a network rarely has on purpose: axes that a view moves, and layers that are one layer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from leadline.ops.arguments import argument
from leadline.ops.table import LAYOUT_KINDS
from leadline.readings.wiring.reached import parent_of, site_of
from leadline.records import Module, Op, Parameter, Trace
from leadline.records.parts import MergedLayers, MovedAxis

VIEWS = frozenset(["view", "reshape", "view_as", "reshape_as"])
CONVOLUTIONS = frozenset(["conv1d", "conv2d", "conv3d"])
# Heuristic: an axis of two entries may be found anywhere by chance.
MIN_AXIS = 3
# Heuristic: frames that are joined to longer ones; (16, 4) then becomes (4, 16) without a mistake.
MAX_JOINED_FRAMES = 8
# Kinds of ops that leave two layers one linear function: they move, scale, shift or drop elements.
LINEAR_KINDS = LAYOUT_KINDS | {"dropout", "bias"}
# Heuristic: ops between two layers that are followed.
MAX_PATH = 8


def read_moved_axes(trace: Trace) -> Iterator[MovedAxis]:
    """Views whose result has an axis of the input in another place, where its elements are not.

    A view keeps the order of elements, so an axis that changes its place needs a transpose. Relative positions are
    shifted by such views on purpose: they add a column before, or cut a row off behind.
    """
    makers = {value: op for op in trace.ops for value in op.outputs}
    readers: dict[int, list[Op]] = defaultdict(list)
    for op in trace.ops:
        for value in op.inputs:
            readers[value].append(op)
    for op in trace.ops:
        if op.name not in VIEWS or not op.inputs or not op.outputs:
            continue
        before, after = trace.values[op.inputs[0]], trace.values[op.outputs[0]]
        maker, following = makers.get(before.id), readers[after.id]
        is_shift = (maker is not None and maker.name in ("cat", "pad")) or (
            bool(following) and all(each.kind == "select" for each in following)
        )
        # Heads are moved beside their features and joined to them; the batch times the heads may be as many by chance.
        is_joined = maker is not None and maker.kind in LAYOUT_KINDS and len(after.shape) < len(before.shape)
        is_constant = before.forward is not None and before.forward.var == 0
        is_compared = _is_compared(after.id, readers)
        is_meant = is_shift or is_joined or is_constant
        axis = None if is_meant else moved_axis(before.shape, after.shape)
        if axis is None and is_compared and maker is not None and maker.name in CONVOLUTIONS:
            axis = _torn_channels(before.shape, after.shape)
        if axis is not None:
            yield MovedAxis(
                site=site_of(op),
                before=before.shape,
                after=after.shape,
                axis=axis,
                is_compared=is_compared,
            )


def _torn_channels(before: Sequence[int], after: Sequence[int]) -> int | None:
    """The channels of a convolution that a view into rows of scores takes for a row; None if it does not."""
    channels = before[1] if len(before) > 2 else None
    return channels if len(after) == 2 and after[-1] == channels and math.prod(before[2:]) > 1 else None


def _is_compared(value: int, readers: Mapping[int, Sequence[Op]]) -> bool:
    """Whether a loss op reads the value, at most in another layout."""
    return any(
        op.kind == "loss"
        or (op.kind in LAYOUT_KINDS and bool(op.outputs) and _is_compared(op.outputs[0], readers))
        for op in readers.get(value, ())
    )


def moved_axis(before: Sequence[int], after: Sequence[int]) -> int | None:
    """The length of an axis that a view from one shape to another puts in another place; None if there is none."""
    for one, two in _groups(before, after):
        if len(one) < 2 or len(two) < 2:
            continue
        if sorted(one) == sorted(two):
            largest, smallest = max(one), min(one)
            is_joined = len(one) == 2 and largest % smallest == 0 and largest // smallest <= MAX_JOINED_FRAMES
            if not is_joined:
                return largest
            continue
        for place, size in enumerate(two):
            if size < MIN_AXIS or one.count(size) != 1 or two.count(size) != 1:
                continue
            step = math.prod(two[place + 1 :])
            if step != math.prod(one[one.index(size) + 1 :]) and not _is_part(one, size, step):
                return size
    return None


def _groups(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """The smallest groups of neighboring axes that a view makes of each other, without axes of length 1."""
    left, right = ([size for size in shape if size != 1] for shape in (before, after))
    while left and right:
        one, two = [left.pop(0)], [right.pop(0)]
        while math.prod(one) != math.prod(two):
            source, group = (left, one) if math.prod(one) < math.prod(two) else (right, two)
            if not source:
                return
            group.append(source.pop(0))
        yield one, two


def _is_part(shape: Sequence[int], size: int, step: int) -> bool:
    """Whether an axis of this length and step between elements is a part of one axis of the shape."""
    for place, length in enumerate(shape):
        own = math.prod(shape[place + 1 :])
        if step % own == 0 and (own * length) % (step * size) == 0:
            return True
    return False


def read_merged_layers(trace: Trace) -> Iterator[MergedLayers]:
    """Pairs of layers of full rank with nothing but linear ops between: together they are one layer.

    A product of two matrices has a smaller rank than one matrix if the units between are fewer than inputs and outputs:
    that is a factorization. Pairs count if they stand in one `nn.Sequential`, or if more units are between them.
    """
    modules = {each.path: each for each in trace.modules}
    weights = {each.name: each for each in trace.parameters if each.kind in ("matrix", "conv")}
    readers: dict[int, list[Op]] = defaultdict(list)
    for op in trace.ops:
        for value in op.inputs:
            readers[value].append(op)
    for op in trace.ops:
        first = _weight_of(op, weights)
        following = None if first is None else _next_layer(op, readers)
        second = None if following is None else _weight_of(following, weights)
        if first is None or following is None or second is None or first is second:
            continue
        given, units, result = _inputs_of(first), first.shape[0], second.shape[0]
        if units != _inputs_of(second) or units < min(given, result):
            continue
        if units > max(given, result) or _are_neighbors(op, following, modules):
            yield MergedLayers(site=site_of(following), first=op.module, second=following.module, units=units)


def _weight_of(op: Op, weights: Mapping[str, Parameter]) -> Parameter | None:
    """The matrix of a linear layer or an ungrouped convolution."""
    if op.name not in ("linear", *CONVOLUTIONS) or argument(op, "groups", 6) not in (None, 1):
        return None
    return next(
        (weights[name] for name in op.params if name in weights and len(weights[name].shape) > 1), None
    )


def _inputs_of(weight: Parameter) -> int:
    return weight.shape[1]


def _next_layer(op: Op, readers: Mapping[int, Sequence[Op]]) -> Op | None:
    """The only op that reads the result, after ops that leave it linear; None if there are several."""
    for _ in range(MAX_PATH):
        following = readers.get(op.outputs[0], ())
        if len(following) != 1:
            return None
        op = following[0]
        if op.kind not in LINEAR_KINDS or not op.outputs:
            return op
    return None


def _are_neighbors(first: Op, second: Op, modules: Mapping[str, Module]) -> bool:
    """Whether two layers are numbered entries of one module that runs them itself, as `nn.Sequential` does."""
    parent = modules.get(parent_of(first.module))
    if parent is None or parent.container or parent_of(second.module) != parent.path:
        return False
    return all(op.module.rpartition(".")[2].isdigit() for op in (first, second))
