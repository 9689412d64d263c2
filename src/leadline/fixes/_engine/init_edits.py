r"""Edits that draw the weights of a model anew, each at the variance that keeps the size of a signal.

A matrix that reads $\phi(z)$ gets $\sigma_w^2 = n\,E[W^2]$ from the critical point of $\phi$
(`leadline.nn.critical`); one that reads the stream, a norm or the input gets 1. The last matrix of a residual branch
without a norm gets its variance divided by $N$, the number of residual blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from leadline.errors import InputError
from leadline.fixes._engine.edit_builders import draw_edit
from leadline.fixes._engine.fix import FixContext
from leadline.fixes._engine.lookup import (
    PACKED_ROWS,
    count_uses,
    feeding_op,
    head_weight,
    residual_blocks,
    weight_ops,
    weights,
)
from leadline.records import Edit, Parameter, ResidualAdd, Weight

# Heuristic: n E[W^2] of a head that is left as it is; PyTorch's default 1/3 and the small 1/n lie inside.
USUAL_HEAD_VARIANCE = (0.03, 2.0)

# Heuristic: above tanh (1), ReLU and GELU (2), far below sigmoid (103), whose critical point saturates most units.
MAX_CRITICAL_VARIANCE = 4.0

# Heuristic: a square matrix that one pass uses this often is taken for a state-to-state matrix.
MIN_RECURRENT_USES = 3

# Heuristic: a branch that is added with a larger factor has not been scaled down for depth (as in check R401).
MAX_SCALED_BRANCH = 0.5


class DrawVariances(NamedTuple):
    """Variance of a weight times its fan-in, and variance of the bias."""

    weight: float
    bias: float


UNIT_GAIN = DrawVariances(1.0, 0.0)


def fresh_edits(context: FixContext, activation: str | None = None) -> tuple[Edit, ...]:
    """Draws for every trainable weight layer except recurrent ones; `activation` replaces the model's own."""
    return tuple(_fresh_edits(context, activation))


def orthogonal_gain(variance: float, shape: tuple[int, ...], fan_in: int, packed: int = 1) -> float:
    r"""The gain of an orthogonal draw with $n\,E[W^2] = v$, the `variance`: $\sqrt{v \max(r, c) / n}$.

    Entries of a matrix of $r$ orthonormal rows, or $c$ columns, have the mean square $1 / \max(r, c)$.
    """
    rows, columns = shape[0] // packed, math.prod(shape[1:])
    return math.sqrt(variance * max(rows, columns) / fan_in)


def critical_variances(activation: str) -> DrawVariances:
    """The critical point of an activation; unit gain where the activation is unknown or has no usable one."""
    from leadline.nn.activations import ACTIVATIONS  # torch-free start
    from leadline.nn.critical import critical

    if activation not in ACTIVATIONS:
        return UNIT_GAIN
    try:
        point = critical(activation)
    except InputError:
        return UNIT_GAIN
    usable = point.weight_variance < MAX_CRITICAL_VARIANCE
    return DrawVariances(point.weight_variance, point.bias_variance) if usable else UNIT_GAIN


def has_critical_point(activation: str) -> bool:
    """False for sigmoids and similar functions, whose gradients survive only where most units are saturated."""
    from leadline.nn.activations import ACTIVATIONS  # torch-free start

    if activation not in ACTIVATIONS or activation == "linear":
        return True
    return critical_variances(activation) is not UNIT_GAIN


def recurrent_names(context: FixContext) -> set[str]:
    """Names of state-to-state matrices: those of PyTorch's cells, and square ones that a pass reads repeatedly."""
    counts = count_uses(context.trace)
    names = {each.name for each in context.trace.parameters if "weight_hh" in each.name}
    for each in context.trace.parameters:
        square = len(each.shape) == 2 and each.shape[0] == each.shape[1]
        if square and counts.get(each.name, 0) >= MIN_RECURRENT_USES:
            names.add(each.name)
    return names


def is_unscaled(residual: ResidualAdd) -> bool:
    """Whether the branch is added with (nearly) its full size."""
    return (residual.branch_scale or 0.0) > MAX_SCALED_BRANCH


def _fresh_edits(context: FixContext, activation: str | None) -> Iterator[Edit]:
    parameters = {each.name: each for each in context.trace.parameters}
    ops, recurrent, head = weight_ops(context.trace), recurrent_names(context), head_weight(context)
    depth = len(residual_blocks(context))
    for weight in weights(context):
        if weight.name in recurrent or not weight.trainable or not _may_draw(weight, head):
            continue
        source = feeding_op(context.trace, ops[weight.name])
        reads_activation = source is not None and source.kind == "activation"
        variances = (
            critical_variances(activation or source.name) if source and reads_activation else UNIT_GAIN
        )
        variance = variances.weight * _branch_factor(context, weight, depth)
        yield _draw(weight, parameters[weight.name], variance)
        if weight.bias:
            std = math.sqrt(_output_variances(weight, activation).bias)
            yield draw_edit(weight.bias, "normal" if std else "constant", std)
    yield from _parametrized_edits(context)
    yield from _norm_edits(context)


def _draw(weight: Weight, parameter: Parameter, variance: float) -> Edit:
    packed = 3 if weight.name.endswith(PACKED_ROWS) else 1
    gain = orthogonal_gain(variance, parameter.shape, weight.fan_in, packed)
    return draw_edit(weight.name, "orthogonal", gain, packed=packed)


def _output_variances(weight: Weight, activation: str | None) -> DrawVariances:
    """The critical point of the activation that reads the weight's output; the bias follows that one."""
    if not weight.activation or weight.residual:
        return UNIT_GAIN
    return critical_variances(activation or weight.activation)


def _may_draw(weight: Weight, head: Weight | None) -> bool:
    """A head stays if its size is usual, or zero: a zero head is a deliberate choice."""
    if head is None or weight.name != head.name:
        return True
    low, high = USUAL_HEAD_VARIANCE
    return not (weight.variance == 0 or low <= weight.variance <= high)


def _branch_factor(context: FixContext, weight: Weight, depth: int) -> float:
    inside = 0 <= weight.block < len(context.profile.blocks)
    if not (weight.residual and weight.last) or weight.norm or not inside:
        return 1.0
    residual = context.profile.blocks[weight.block].residual
    bare = residual is not None and residual.placement == "none" and is_unscaled(residual)
    return 1.0 / depth if bare and depth else 1.0


def _parametrized_edits(context: FixContext) -> Iterator[Edit]:
    """Draws for weights that a parametrization computes: the trace sees only their originals."""
    from torch.nn.utils import parametrize  # torch-free start

    names = {weight.name for weight in weights(context)}
    for path, module in context.model.named_modules():
        name = f"{path}.weight" if path else "weight"
        if name in names or not parametrize.is_parametrized(module, "weight"):
            continue
        shape = tuple(module.weight.shape)
        if len(shape) > 1 and all(p.requires_grad for p in module.parametrizations["weight"].parameters()):
            gain = orthogonal_gain(1.0, shape, math.prod(shape[1:]))
            draw = draw_edit(name, "orthogonal", gain)
            yield Edit(action=draw.action, where=name, options={**draw.options, "parametrized": True})


def _norm_edits(context: FixContext) -> Iterator[Edit]:
    """Set the gains of norms back to 1 where they differ from it."""
    for each in context.trace.parameters:
        is_gain = each.kind == "norm" and each.name.endswith("weight") and each.trainable
        if is_gain and each.mean is not None and each.ms is not None and (each.mean, each.ms) != (1.0, 1.0):
            yield draw_edit(each.name, "constant", 1.0)
