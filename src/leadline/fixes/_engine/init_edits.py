r"""Edits that draw the weights of a model afresh, each at the variance that keeps a signal's size.

A matrix that reads $\phi(z)$ gets $\sigma_w^2 = n\,E[W^2]$ from the critical point of $\phi$
(`leadline.nn.critical`); one that reads the stream, a norm or the input gets 1. The last matrix of a residual branch
without a norm is drawn smaller by $1/\sqrt N$, $N$ the residual blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch.nn.utils import parametrize

from leadline.errors import InputError
from leadline.fixes._edits.draw import draw_edit
from leadline.fixes._engine.fix import Patient
from leadline.fixes._engine.lookup import (
    ROWS,
    feeder,
    head_of,
    own_model,
    residual_blocks,
    uses,
    weight_ops,
    weights,
)
from leadline.nn.activations import ACTIVATIONS
from leadline.nn.critical import CriticalPoint, critical
from leadline.records import Edit, Parameter, Weight

HEADS = (0.03, 2.0)  # n E[W^2] of a head that is kept: PyTorch's default 1/3 and 1/n lie inside (ours)
SATURATED = (
    4.0  # critical variance beyond which units saturate: tanh has 1, ReLU and GELU 2, sigmoid 103 (ours)
)
RECURRENT_USES = 3  # a square matrix that a pass uses this often is taken for a state-to-state one (ours)
PLAIN = CriticalPoint(weight_variance=1.0, bias_variance=0.0, q=1.0, variance_gain=1.0)


def fresh_edits(patient: Patient, activation: str | None = None) -> tuple[Edit, ...]:
    """Draws for every trainable weight layer but recurrent ones; `activation` stands for those that are there."""
    return tuple(_edits(patient, activation))


def orthogonal_gain(variance: float, shape: tuple[int, ...], fan_in: int, packed: int = 1) -> float:
    r"""The gain of an orthogonal draw with $n\,E[W^2] = v$, the `variance`: $\sqrt{v \max(r, c) / n}$.

    Entries of a matrix of $r$ orthonormal rows, or $c$ columns, have the mean square $1 / \max(r, c)$.
    """
    rows, columns = shape[0] // packed, math.prod(shape[1:])
    return math.sqrt(variance * max(rows, columns) / fan_in)


def critical_point(activation: str) -> CriticalPoint:
    """Of an activation by name; unit gain where it has none that is of use, or is not known."""
    try:
        found = critical(activation) if activation in ACTIVATIONS else PLAIN
    except InputError:
        return PLAIN
    return found if found.weight_variance < SATURATED else PLAIN


def has_critical_point(activation: str) -> bool:
    """False of sigmoids and their like: there gradients survive only where most units are saturated."""
    return activation not in ACTIVATIONS or activation == "linear" or critical_point(activation) is not PLAIN


def recurrent_names(patient: Patient) -> set[str]:
    """State-to-state matrices: square, and read again and again in one pass; or of PyTorch's own cells."""
    counts = uses(patient.trace)
    found = {each.name for each in patient.trace.parameters if "weight_hh" in each.name}
    for each in patient.trace.parameters:
        square = len(each.shape) == 2 and each.shape[0] == each.shape[1]
        if square and counts.get(each.name, 0) >= RECURRENT_USES:
            found.add(each.name)
    return found


def _edits(patient: Patient, activation: str | None) -> Iterator[Edit]:
    parameters = {each.name: each for each in patient.trace.parameters}
    ops, skipped, head = weight_ops(patient.trace), recurrent_names(patient), head_of(patient)
    depth = len(residual_blocks(patient))
    for each in weights(patient):
        parameter = parameters[each.name]
        if each.name in skipped or not each.trainable or not _may_draw(each, head):
            continue
        maker = feeder(patient.trace, ops[each.name])
        read = maker.name if maker is not None and maker.kind == "activation" else ""
        point = critical_point(activation or read) if read else PLAIN
        variance = point.weight_variance * _branch_factor(patient, each, depth)
        yield _draw(each, parameter, variance)
        if each.bias:
            std = math.sqrt(_behind(each, activation).bias_variance)
            yield draw_edit(each.bias, "normal" if std else "constant", std)
    yield from _parametrized(patient)
    yield from _norms(patient)


def _draw(weight: Weight, parameter: Parameter, variance: float) -> Edit:
    packed = 3 if weight.name.endswith(ROWS) else 1
    gain = orthogonal_gain(variance, parameter.shape, weight.fan_in, packed)
    return draw_edit(weight.name, "orthogonal", gain, packed=packed)


def _behind(weight: Weight, activation: str | None) -> CriticalPoint:
    """The critical point of what reads a weight's output: its bias belongs to that."""
    if not weight.activation or weight.residual:
        return PLAIN
    return critical_point(activation or weight.activation)


def _may_draw(weight: Weight, head: Weight | None) -> bool:
    """Heads are kept where their size is usual, zero included: a zero head is somebody's choice."""
    if head is None or weight.name != head.name:
        return True
    return not (weight.variance == 0 or HEADS[0] <= weight.variance <= HEADS[1])


def _branch_factor(patient: Patient, weight: Weight, depth: int) -> float:
    if (
        not (weight.residual and weight.last)
        or weight.norm
        or not 0 <= weight.block < len(patient.profile.blocks)
    ):
        return 1.0
    residual = patient.profile.blocks[weight.block].residual
    bare = residual is not None and residual.placement == "none" and (residual.branch_scale or 0.0) > 0.5
    return 1.0 / depth if bare and depth else 1.0


def _parametrized(patient: Patient) -> Iterator[Edit]:
    """Weights that a parametrisation makes: the trace sees their originals only."""
    known = {each.name for each in weights(patient)}
    for path, module in own_model(patient).named_modules():
        name = f"{path}.weight" if path else "weight"
        if name in known or not parametrize.is_parametrized(module, "weight"):
            continue
        shape = tuple(module.weight.shape)
        if len(shape) > 1 and all(p.requires_grad for p in module.parametrizations["weight"].parameters()):
            gain = orthogonal_gain(1.0, shape, math.prod(shape[1:]))
            made = draw_edit(name, "orthogonal", gain)
            yield Edit(action=made.action, where=name, options={**made.options, "parametrized": True})


def _norms(patient: Patient) -> Iterator[Edit]:
    """Gains of norms back to 1 where somebody set them otherwise."""
    for each in patient.trace.parameters:
        gain = each.kind == "norm" and each.name.endswith("weight") and each.trainable
        if gain and each.mean is not None and each.ms is not None and (each.mean, each.ms) != (1.0, 1.0):
            yield draw_edit(each.name, "constant", 1.0)
