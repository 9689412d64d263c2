"""What becomes of each input: whether the model reads it, whether the predictions depend on it, and what erases it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from leadline.ops.table import LAYOUT_KINDS
from leadline.readings.graph import flow_from
from leadline.readings.wiring.batch import BatchTensor
from leadline.readings.wiring.reached import needed_ops, read_values
from leadline.records import Op, Trace, Value
from leadline.records.wiring import InputUse, OpSite

# Kinds of ops that work on single elements or move them.
ELEMENTWISE_KINDS = LAYOUT_KINDS | {"scale", "add", "bias", "pointwise", None}
# Heuristic: ops between an input and the one that erases it.
MAX_DEPTH = 8


def read_input_uses(trace: Trace, inputs: Sequence[BatchTensor]) -> tuple[InputUse, ...]:
    """One record per input. What only the loss reads, beside the model, is not used by the model."""
    values = {value.name: value for value in trace.values if value.source == "input"}
    readers: dict[int, list[Op]] = defaultdict(list)
    for index in sorted(needed_ops(trace)):
        if trace.ops[index].phase == "forward":
            for value in read_values(trace.ops[index]):
                readers[value].append(trace.ops[index])
    return tuple(_use(trace, each, values.get(each.name), readers) for each in inputs)


def looked_up_inputs(trace: Trace) -> set[str]:
    """Names of the inputs that are indices of an embedding, such as words."""
    indices = {value for op in trace.ops if op.kind == "embedding" for value in op.inputs}
    return {value.name for value in trace.values if value.source == "input" and value.id in indices}


def _use(
    trace: Trace, given: BatchTensor, value: Value | None, readers: Mapping[int, Sequence[Op]]
) -> InputUse:
    eraser = None if value is None or given.is_constant else _eraser(trace, value.id, readers)
    return InputUse(
        name=given.name,
        shape=tuple(given.tensor.shape),
        used=value is not None and value.id in readers,
        visible=value is not None and flow_from(trace, value) is not None,
        constant=given.is_constant,
        erased=None if eraser is None else OpSite(op=eraser.name, module=eraser.module, source=eraser.source),
    )


def _eraser(trace: Trace, value: int, readers: Mapping[int, Sequence[Op]], depth: int = 0) -> Op | None:
    """The first op that makes zeros of the value, if all ways from it end there; those with parameters may open later.

    Ops on single elements are followed, because a division of integers may stand between a factor and a cast.
    """
    erasers = []
    for op in readers.get(value, ()):
        measured = trace.values[op.outputs[0]].forward
        eraser = None
        if measured is not None and measured.ms == 0 and measured.count > 1 and op.kind not in LAYOUT_KINDS:
            eraser = op if not op.params else None
        elif op.kind in ELEMENTWISE_KINDS and not op.params and depth < MAX_DEPTH:
            eraser = _eraser(trace, op.outputs[0], readers, depth + 1)
            is_cast_of_zeros = measured is not None and measured.ms == 0 and op.kind in LAYOUT_KINDS
            eraser = op if eraser is None and is_cast_of_zeros and depth else eraser
        if eraser is None:
            return None
        erasers.append(eraser)
    return erasers[0] if erasers else None


def predictions_read_inputs(trace: Trace) -> bool:
    """Whether anything that a loss op compares, and that a parameter went into, was computed from an input.

    True if there is no such thing. A network that decodes nothing but noise has predictions of this kind.
    """
    inputs = {each.id for each in trace.values if each.source == "input"}
    learned = {each.id for each in trace.values if each.source == "parameter"}
    is_known = False
    for op in trace.ops:
        if op.kind != "loss" or not op.inputs:
            continue
        behind = needed_ops(trace, op.inputs[:1])
        read = {*op.inputs[:1], *(value for index in behind for value in read_values(trace.ops[index]))}
        if read & inputs:
            return True
        is_known = is_known or bool(read & learned)
    return not (is_known and inputs)
