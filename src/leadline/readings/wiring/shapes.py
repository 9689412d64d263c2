"""Does each output meet its own target? The shapes that the loss compares, and views that tear class scores apart."""

from __future__ import annotations

import math
from itertools import zip_longest

import torch
from torch import Tensor

from leadline.ops.table import LAYOUT_KINDS
from leadline.records import Op, Trace
from leadline.records.wiring import Broadcast, OpSite
from leadline.tracer.passes import Pass
from leadline.tracer.values import tensors_in

ELEMENT_LOSSES = frozenset(
    [
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
        "huber_loss",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
    ]
)
"""Losses that compare predictions and targets element by element."""


def find_broadcast(trace: Trace) -> Broadcast | None:
    """The first op of the loss in which shapes such as (N, 1) and (N,) make a table of all outputs and all targets."""
    outputs = {value for op in trace.ops if op.phase == "forward" for value in op.outputs}
    targets = {value.id for value in trace.values if value.source == "target"}
    for op in trace.ops:
        if op.phase != "loss":
            continue
        of_targets, of_outputs = targets & {*op.inputs}, outputs & {*op.inputs}
        for output in of_outputs:
            for target in of_targets - {output}:
                if _is_table(trace, output, target, op):
                    return Broadcast(
                        outputs=trace.values[output].shape,
                        targets=trace.values[target].shape,
                        site=OpSite(op=op.name, module=op.module, source=op.source),
                    )
        if of_targets:
            targets.update(op.outputs)
        if of_outputs:
            outputs.update(op.outputs)
    return None


def compares_directly(trace: Trace) -> bool:
    """Whether all that is done with outputs and targets, before a loss op reads both, is to move their elements.

    Then each output has one target, and nothing compares samples with each other.
    """
    outputs = {value for op in trace.ops if op.phase == "forward" for value in op.outputs}
    targets = {value.id for value in trace.values if value.source == "target"}
    is_compared = False
    for op in trace.ops:
        if op.phase != "loss" or not (outputs | targets).intersection(op.inputs):
            continue
        if op.kind == "loss":
            is_compared = True
        elif op.kind not in LAYOUT_KINDS:
            return False
        elif targets.intersection(op.inputs):
            targets.update(op.outputs)
        else:
            outputs.update(op.outputs)
    return is_compared


def _is_table(trace: Trace, output: int, target: int, op: Op) -> bool:
    """Whether the op compares more pairs than there are, although both have the same sizes apart from axes of length 1.

    A loss that compares element by element broadcasts inside.
    """
    first, second = trace.values[output].shape, trace.values[target].shape
    if len(first) == len(second):
        return False
    if without_ones(first) != without_ones(second):
        return _is_crossed(first, second)
    compared = trace.values[op.outputs[0]].shape
    if op.name in ELEMENT_LOSSES:
        pairs = zip_longest(reversed(first), reversed(second), fillvalue=1)
        compared = tuple(max(pair) for pair in pairs)
    return math.prod(compared) > max(math.prod(first), math.prod(second))


def _is_crossed(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """Whether the samples, along the first axis of both shapes, meet on two axes of what they broadcast to."""
    samples = first[0] if first else 1
    if samples == 1 or not second or second[0] != samples:
        return False
    pairs = list(zip_longest(reversed(first), reversed(second), fillvalue=1))
    return (samples, 1) in pairs and (1, samples) in pairs


def without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of a shape without axes of length 1."""
    return tuple(size for size in shape if size != 1)


def scrambled_output(base: Pass, predictions: Tensor, axis: int) -> tuple[int, ...] | None:
    """The shape of an output that was viewed as class scores although its classes are along another axis.

    A view keeps the elements in order. Then the step from one class to the next, counted in elements, must be the same
    in both shapes.
    """
    classes, flat = predictions.size(axis), predictions.detach().flatten()
    for output in tensors_in(base.output):
        if output.dim() < 3 or output.numel() != flat.numel() or classes not in output.shape[1:]:
            continue
        steps = [
            math.prod(output.shape[place + 1 :]) for place, size in enumerate(output.shape) if size == classes
        ]
        if math.prod(predictions.shape[axis + 1 :]) not in steps and torch.equal(
            output.detach().flatten(), flat
        ):
            return tuple(output.shape)
    return None
