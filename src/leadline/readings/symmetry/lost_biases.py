"""Biases without effect: a batch norm subtracts them, or a softmax over keys does not see them.

The network does not depend on such a bias at all, so that its scale is free for any scale of the signal.
"""

from __future__ import annotations

from leadline.ops.arguments import argument, value_of
from leadline.ops.table import LAYOUT_KINDS
from leadline.readings.symmetry.equations import ScaleEquations
from leadline.records import Op

# Heuristic: more views, scales and masks than attention code puts between a key projection and its softmax.
MAX_OPS_TO_SOFTMAX = 12

_TRANSPOSES = frozenset(
    {
        *("transpose", "permute", "movedim", "swapaxes", "t", "mT", "T"),
        *("contiguous", "clone", "squeeze", "unsqueeze"),
    }
)
_SHAPE_OPS = _TRANSPOSES | {"view", "reshape", "unflatten", "expand", "repeat_interleave"}
_LOGIT_KINDS = LAYOUT_KINDS | {"scale", "bias"}
_LOGIT_OPS = frozenset({"masked_fill", "add", "where"})


def is_lost(scales: ScaleEquations, op: Op) -> bool:
    """Whether a bias that this op adds, one number per feature and equal at all positions, changes nothing later."""
    if len(op.outputs) != 1:
        return False
    return op.outputs[0] in scales.subtracted or _is_only_key(scales, op.outputs[0])


def find_subtracted(scales: ScaleEquations) -> set[int]:
    """Values to which one may add a vector, equal for all samples and positions, without changing anything.

    The search goes backward: such a shift is lost in a norm that subtracts the mean of each channel, and linear maps,
    sums and attention's averages pass it on. All ops that read the value must lose it.
    """
    lost: set[int] = set()
    for op in reversed(scales.ops):
        for value in op.inputs:
            readers = _readers(scales, value)
            is_signal = scales.trace.loss_value != value and scales.trace.values[value].floating
            if is_signal and all(_loses(reader, value, lost) for reader in readers):
                lost.add(value)
    return lost


def _readers(scales: ScaleEquations, value: int) -> list[Op]:
    return [scales.trace.ops[each] for each in scales.readers[value]]


def _loses(reader: Op, value: int, lost: set[int]) -> bool:
    is_input = value_of(argument(reader, "input", 0)) == value and reader.phase == "forward"
    if reader.name == "batch_norm":
        from_batch = argument(reader, "running_mean", 1) is None or argument(reader, "training", 5) is True
        return is_input and from_batch
    if reader.name == "instance_norm":
        return is_input and argument(reader, "use_input_stats", 5) is not False
    if reader.phase != "forward" or len(reader.outputs) != 1 or reader.outputs[0] not in lost:
        return False
    if reader.name == "scaled_dot_product_attention":  # an average of values: its weights add up to one
        others = (argument(reader, "query", 0), argument(reader, "key", 1))
        is_value = value_of(argument(reader, "value", 2)) == value and f"%{value}" not in others
        return is_value and not argument(reader, "dropout_p", 4)
    return reader.name in _TRANSPOSES or reader.name == "add" or (reader.name == "linear" and is_input)


def _is_only_key(scales: ScaleEquations, value: int) -> bool:
    """Whether the value is used only as keys: then the bias adds the same number to all logits of a query."""
    for _ in range(MAX_OPS_TO_SOFTMAX):
        readers = _readers(scales, value)
        if len(readers) != 1 or scales.trace.loss_value == value:
            return False
        (reader,) = readers
        if reader.name == "scaled_dot_product_attention":
            others = (argument(reader, "query", 0), argument(reader, "value", 2))
            return value_of(argument(reader, "key", 1)) == value and f"%{value}" not in others
        if reader.name in ("matmul", "bmm"):
            is_right_factor = value_of(argument(reader, "other", 1)) == value
            return is_right_factor and _ends_in_softmax(scales, reader.outputs[0])
        if reader.name not in _SHAPE_OPS or len(reader.outputs) != 1:
            return False
        value = reader.outputs[0]
    return False


def _ends_in_softmax(scales: ScaleEquations, value: int) -> bool:
    """Whether logits pass only through scales and masks, into a softmax over the last dimension."""
    for _ in range(MAX_OPS_TO_SOFTMAX):
        readers = _readers(scales, value)
        if len(readers) != 1:
            return False
        (reader,) = readers
        if reader.name == "softmax":
            return argument(reader, "dim", 1) in (-1, len(scales.trace.values[value].shape) - 1)
        passes = reader.kind in _LOGIT_KINDS or reader.name in _LOGIT_OPS
        if not passes or len(reader.outputs) != 1:
            return False
        value = reader.outputs[0]
    return False
