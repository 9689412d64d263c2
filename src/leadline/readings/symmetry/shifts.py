"""Biases whose effect is lost at once: a batch norm subtracts them, a softmax over keys does not see them.

The function does not depend on such a bias at all, so its scale is free whatever the scale of the signal beside it.
"""

from __future__ import annotations

from leadline.ops.arguments import argument, value_of
from leadline.readings.symmetry.walk import Walk
from leadline.records import Op

STEPS = 12  # ours: views, scales and masks between a projection of keys and the softmax that it ends in
_TURNS = frozenset(
    {
        "transpose",
        "permute",
        "movedim",
        "swapaxes",
        "contiguous",
        "clone",
        "t",
        "mT",
        "T",
        "squeeze",
        "unsqueeze",
    }
)
_SHAPES = _TURNS | frozenset({"view", "reshape", "unflatten", "expand", "repeat_interleave"})


def is_lost(walk: Walk, op: Op) -> bool:
    """Whether a bias that this op adds, one number a feature and the same at all positions, changes nothing later."""
    if len(op.outputs) != 1:
        return False
    return op.outputs[0] in walk.subtracted or _only_a_key(walk, op.outputs[0])


def find_subtracted(walk: Walk) -> set[int]:
    """Values to which adding a vector, the same for all samples and positions, changes nothing.

    From the end: such a shift is lost in a norm that takes out the mean of each channel, and linear maps, sums and
    attention's averages hand it on. All that read the value must lose it.
    """
    lost: set[int] = set()
    for op in reversed(walk.ops):
        for value in op.inputs:
            readers = _readers(walk, value)
            passed = walk.trace.loss_value != value and walk.trace.values[value].floating
            if passed and all(_loses(reader, value, lost) for reader in readers):
                lost.add(value)
    return lost


def _readers(walk: Walk, value: int) -> list[Op]:
    return [walk.trace.ops[each] for each in walk.readers[value]]


def _loses(reader: Op, value: int, lost: set[int]) -> bool:
    place = value_of(argument(reader, "input", 0)) == value and reader.phase == "forward"
    if reader.name == "batch_norm":
        fresh = argument(reader, "running_mean", 1) is None or argument(reader, "training", 5) is True
        return place and fresh
    if reader.name == "instance_norm":
        return place and argument(reader, "use_input_stats", 5) is not False
    if reader.phase != "forward" or len(reader.outputs) != 1 or reader.outputs[0] not in lost:
        return False
    if reader.name == "scaled_dot_product_attention":  # an average of values: its weights add up to one
        sides = (argument(reader, "query", 0), argument(reader, "key", 1))
        return (
            value_of(argument(reader, "value", 2)) == value
            and f"%{value}" not in sides
            and not _drops(reader)
        )
    return reader.name in _TURNS or reader.name == "add" or (reader.name == "linear" and place)


def _drops(attention: Op) -> bool:
    return bool(argument(attention, "dropout_p", 4))


def _only_a_key(walk: Walk, value: int) -> bool:
    """The value is used only as keys: then the bias adds the same number to all logits of a query."""
    for _ in range(STEPS):
        readers = _readers(walk, value)
        if len(readers) != 1 or walk.trace.loss_value == value:
            return False
        (reader,) = readers
        if reader.name == "scaled_dot_product_attention":
            others = (argument(reader, "query", 0), argument(reader, "value", 2))
            return value_of(argument(reader, "key", 1)) == value and f"%{value}" not in others
        if reader.name in ("matmul", "bmm"):
            return value_of(argument(reader, "other", 1)) == value and _ends_in_softmax(
                walk, reader.outputs[0]
            )
        if reader.name not in _SHAPES or len(reader.outputs) != 1:
            return False
        value = reader.outputs[0]
    return False


def _ends_in_softmax(walk: Walk, value: int) -> bool:
    """Scores go through scales and masks only, into a softmax over the last dimension."""
    for _ in range(STEPS):
        readers = _readers(walk, value)
        if len(readers) != 1:
            return False
        (reader,) = readers
        if reader.name == "softmax":
            return argument(reader, "dim", 1) in (-1, len(walk.trace.values[value].shape) - 1)
        passes = reader.kind in ("scale", "bias", "layout", "cast") or reader.name in (
            "masked_fill",
            "add",
            "where",
        )
        if not passes or len(reader.outputs) != 1:
            return False
        value = reader.outputs[0]
    return False
