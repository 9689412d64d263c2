"""Frozen matrices that nobody trained: their entries are as independent as an initializer leaves them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from leadline.case import Case
from leadline.readings.update.tensor_sums import largest_singular_value
from leadline.records import Op, Parameter, Trace
from leadline.records.parts import FrozenWeights
from leadline.tracer.cuts import values_after
from leadline.tracer.inputs import unwrap
from leadline.tracer.names import index_model

# Heuristic: fewer entries do not tell an initializer from training.
MIN_ENTRIES = 1024
MIN_SIDE = 16
# Heuristic: matrices that are looked at, spread over the depth.
MAX_MATRICES = 24
# Derived: a uniform distribution has a kurtosis of 1.8, a normal one 3; a fourth moment of 1024 normal entries
# scatters by 0.3.
KURTOSIS_RANGE = (1.5, 4.0)
# Derived: the largest singular value of independent entries is (sqrt(m) + sqrt(n)) sigma, up to fluctuations of the
# order of m^(-2/3); training adds directions far above it.
MAX_SINGULAR_EXCESS = 1.15
# Derived: the mean squares of rows scatter by (kurtosis - 1) / n; the scatter itself is known to a factor of two
# from 16 rows.
MAX_SCATTER_EXCESS = 3.0
# Heuristic: random matrices must be nearly all of the frozen ones that were looked at.
MIN_RANDOM_SHARE = 0.9


def read_frozen_weights(trace: Trace, case: Case) -> FrozenWeights | None:
    """The frozen matrices of the pass if they are random; None if there are none, or they were trained."""
    frozen = [each for each in trace.parameters if each.used and not each.trainable and _is_matrix(each)]
    if not frozen:
        return None
    step = -(-len(frozen) // MAX_MATRICES)
    tensors = {each.names[0]: each.item for each in index_model(unwrap(case.model)).parameters.values()}
    looked_at = [each for each in frozen[::step] if each.name in tensors]
    random = [each for each in looked_at if is_random(tensors[each.name])]
    if not looked_at or len(random) < MIN_RANDOM_SHARE * len(looked_at):
        return None
    count = sum(each.count for each in frozen)
    return FrozenWeights(
        names=tuple(each.name for each in frozen),
        count=count,
        share=count / max(sum(each.count for each in trace.parameters), 1),
        feeds_learning=_feeds_learning(trace, {each.name for each in frozen}),
    )


def _is_matrix(parameter: Parameter) -> bool:
    return parameter.kind in ("matrix", "conv", "embedding") and parameter.count >= MIN_ENTRIES


def _feeds_learning(trace: Trace, frozen: set[str]) -> bool:
    """Whether something that learns reads what the frozen matrices compute, and nothing adapts them.

    Adapters learn between frozen layers, or beside one: they read the same input.
    """
    trainable = {each.name for each in trace.parameters if each.trainable}
    fixed, learning = ops_with(trace, frozen), ops_with(trace, trainable)
    after = values_after(trace, outputs_of(fixed))
    later = [op for op in learning if after.intersection(op.inputs)]
    after_later = values_after(trace, outputs_of(later))
    read = {value for op in fixed for value in op.inputs if trace.values[value].source != "parameter"}
    is_adapted = any(after_later.intersection(op.inputs) for op in fixed) or any(
        read.intersection(op.inputs) for op in learning
    )
    return bool(later) and not is_adapted


def ops_with(trace: Trace, names: set[str]) -> list[Op]:
    """The ops that apply these parameters to a signal, also after they were transposed or scaled."""
    own, ops = set[int](), list[Op]()
    for op in trace.ops:
        if not names.intersection(op.params) and not own.intersection(op.inputs):
            continue
        if all(each in own or trace.values[each].source in ("parameter", "constant") for each in op.inputs):
            own.update(op.outputs)
        else:
            ops.append(op)
    return ops


def outputs_of(ops: Iterable[Op]) -> set[int]:
    return {value for op in ops for value in op.outputs}


@torch.no_grad()
def is_random(weight: Tensor) -> bool:
    """Whether the entries of a matrix are as independent as an initializer leaves them.

    Rows and columns of independent entries have mean squares that scatter little, and no direction stands out. Training
    makes some units larger than others and adds a few large singular values.
    """
    matrix = weight.detach().flatten(1).float() if weight.dim() > 1 else weight.detach().float()
    if matrix.dim() != 2 or min(matrix.shape) < MIN_SIDE or not bool(torch.isfinite(matrix).all()):
        return False
    square = matrix.square()
    scale = square.mean()
    if not bool(scale > 0) or bool(matrix.mean().square() > 0.05 * scale):
        return False
    kurtosis = float(square.square().mean() / scale.square())
    if not KURTOSIS_RANGE[0] < kurtosis < KURTOSIS_RANGE[1]:
        return False
    for axis in (0, 1):
        expected = (kurtosis - 1) / matrix.size(1 - axis)
        scatter = float((square.mean(1 - axis) / scale).var())
        if scatter > MAX_SCATTER_EXCESS * expected:
            return False
    edge = float(scale.sqrt()) * sum(math.sqrt(side) for side in matrix.shape)
    return largest_singular_value(matrix) <= MAX_SINGULAR_EXCESS * edge
