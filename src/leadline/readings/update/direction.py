"""The direction of a step, and how the step is distributed over parameters, blocks and depth ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from leadline.readings.update import tensor_sums as sums
from leadline.readings.update.probe import StepProbe
from leadline.readings.update.step_parts import split_parameters
from leadline.records import BlockStep, DepthBlock, DepthRange, ParameterStep, Profile

# Derived: rounding of a step this many units in the last place long turns its direction by about one percent.
MIN_DIRECTION_ULPS = 64.0
# Heuristic: the rate factor to try first when a step is rounded away completely.
FIRST_RATE_FACTOR = 1024.0
# Heuristic: five attempts reach rates 1e15 times the user's.
MAX_ATTEMPTS = 5
# Heuristic: quarters of the depth tell early from late, and one pass each is affordable.
DEPTH_RANGES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDirection:
    """The direction of a step, measured on the step itself or on a longer one."""

    deltas: list[Tensor]
    """Changes of the parameters, `factor` times those of the user's step."""
    factor: float
    slope: float
    """Change of the loss that the gradient predicts for the user's step."""


def find_direction(
    probe: StepProbe, deltas: list[Tensor], slope: float, grads: list[Tensor] | None
) -> StepDirection:
    """The direction of the step, or of a longer one where rounding spoils it; moves the parameters.

    `slope` is the change of the loss that the gradient predicts. Without `grads`, they are computed again if needed.
    """
    own = longest = StepDirection(deltas=deltas, factor=1.0, slope=slope)
    min_length = _min_length(probe)
    length, factor = sums.total_norm(deltas), 1.0
    if grads is None and length < min_length:
        grads = probe.gradient_at_start()
    for _ in range(MAX_ATTEMPTS):
        if length >= min_length:
            break
        factor *= max(2 * min_length / length, 2.0) if length else FIRST_RATE_FACTOR
        if not probe.step_at(factor):
            return longest
        longer = sums.differences(probe.parameters, probe.start)
        length = sums.total_norm(longer)
        if not math.isfinite(length):
            return own
        if not length:
            longest = own
            continue
        assert grads is not None  # the step was too short
        slope = sum(sums.inner_products(grads, longer)) / factor
        longest = StepDirection(deltas=longer, factor=factor, slope=slope)
    return longest


def _min_length(probe: StepProbe) -> float:
    """Length of a step of `MIN_DIRECTION_ULPS` units in the last place of all weights."""
    spacings = [_spacing(each) for each in probe.start]
    weights = sums.norms(probe.start)
    squares = ((eps * norm) ** 2 for eps, norm in zip(spacings, weights, strict=True))
    return MIN_DIRECTION_ULPS * math.sqrt(sum(squares))


def _spacing(tensor: Tensor) -> float:
    return torch.finfo(tensor.dtype).eps if tensor.is_floating_point() or tensor.is_complex() else 0.0


# The parts of a step by parameter, by block and by range of blocks.


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTensors:
    """One step as tensors; all lists have the same order."""

    names: list[str]
    start: list[Tensor]
    deltas: list[Tensor]


def exchange_gradients(
    probe: StepProbe, grads: list[Tensor], blocks: Sequence[DepthBlock]
) -> tuple[list[Tensor], tuple[ParameterStep, ...]]:
    """The changes of the parameters by a step, and what it does to each; frees the gradients one part after the other.

    So the changes take the place of the gradients.
    """
    deltas: list[Tensor] = []
    parameters: list[ParameterStep] = []
    for part in split_parameters(probe.parameters):
        step = StepTensors(
            names=probe.names[part],
            start=probe.start[part],
            deltas=sums.differences(probe.parameters[part], probe.start[part]),
        )
        parameters += by_parameter(step, grads[: len(step.names)], blocks)
        deltas += step.deltas
        del grads[: len(step.names)]
        probe.drop_gradients(probe.parameters[part])
    return deltas, tuple(parameters)


def by_parameter(
    step: StepTensors, gradients: list[Tensor], blocks: Sequence[DepthBlock]
) -> tuple[ParameterStep, ...]:
    """What the step does to each parameter."""
    block_of: dict[str, str] = {}
    for block in blocks:
        for name in block.params:
            block_of.setdefault(name, block.name)
    products = sums.inner_products(gradients, step.deltas)
    grads, updates, weights = (sums.norms(each) for each in (gradients, step.deltas, step.start))
    return tuple(
        ParameterStep(
            name=name,
            block=block_of.get(name, ""),
            count=step.start[i].numel(),
            dtype=str(step.start[i].dtype).removeprefix("torch."),
            predicted=products[i],
            grad_norm=grads[i],
            update_norm=updates[i],
            weight_norm=weights[i],
            swallowed=_swallowed(gradients[i], step.deltas[i], updates[i], weights[i], step.start[i].dtype),
        )
        for i, name in enumerate(step.names)
    )


def _swallowed(
    grad: Tensor, delta: Tensor, update_norm: float, weight_norm: float, dtype: torch.dtype
) -> float | None:
    if dtype.is_complex or not sums.may_swallow(update_norm, weight_norm, dtype):
        return None
    return sums.swallowed_share(grad, delta)


def repeated_blocks(profile: Profile) -> list[DepthBlock]:
    """The blocks that a deeper network repeats: the residual ones, else all between the ends of the longest stream."""
    if not profile.streams:
        return []
    index = max(range(len(profile.streams)), key=lambda each: profile.streams[each].blocks)
    blocks = [block for block in profile.blocks if block.stream == index]
    residual = [block for block in blocks if block.residual is not None]
    return residual if len(residual) > 1 else [block for block in blocks[1:-1] if block.weights]


def by_block(parameters: Sequence[ParameterStep], profile: Profile | None) -> tuple[BlockStep, ...]:
    """What the step does to each block; empty without a profile."""
    if profile is None:
        return ()
    blocks, repeated = profile.blocks, {block.name for block in repeated_blocks(profile)}
    total = sum(each.predicted for each in parameters)
    parts: dict[str, list[ParameterStep]] = {block.name: [] for block in blocks}
    for each in parameters:
        if each.block:
            parts[each.block].append(each)
    return tuple(_block(block, parts[block.name], total, block.name in repeated) for block in blocks)


def _block(block: DepthBlock, parts: Sequence[ParameterStep], total: float, repeated: bool) -> BlockStep:
    predicted = sum(each.predicted for each in parts)
    return BlockStep(
        name=block.name,
        stream=block.stream,
        repeated=repeated,
        predicted=predicted,
        share=_share(predicted, total),
        grad_square=sum(each.grad_norm**2 for each in parts),
        update_norm=math.sqrt(sum(each.update_norm**2 for each in parts)),
        weight_norm=math.sqrt(sum(each.weight_norm**2 for each in parts)),
    )


def by_range(blocks: Sequence[BlockStep], total: float) -> tuple[DepthRange, ...]:
    """What the step does to each quarter of the depth axis, from the input to the loss."""
    return tuple(
        DepthRange(
            first=part[0].name,
            last=part[-1].name,
            blocks=len(part),
            share=_share(sum(each.predicted for each in part), total),
        )
        for part in quarters(blocks)
    )


def quarters(blocks: Sequence[BlockStep]) -> list[Sequence[BlockStep]]:
    """The blocks in four consecutive parts of about equal size; fewer if there are fewer blocks."""
    edges = [round(i * len(blocks) / DEPTH_RANGES) for i in range(DEPTH_RANGES + 1)]
    return [blocks[a:b] for a, b in pairwise(edges) if b > a]


def _share(part: float, total: float) -> float | None:
    return part / total if total and math.isfinite(total) else None
