"""The direction of a step, and how it is distributed over parameters, blocks and depth ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from leadline.readings.update import tensor_sums as sums
from leadline.readings.update.probe import StepProbe
from leadline.records import BlockStep, DepthBlock, DepthRange, ParameterStep, Profile

COARSE = 64.0  # units in the last place of a weight: an update that is longer has its direction to about one percent
FIRST_FACTOR = 1024.0  # ours: where nothing at all is left of a step, the rate to try next
MOST_TRIES = 5  # ours: rates up to 1e15 times the user's


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """`deltas` are `factor` times the user's step."""

    deltas: list[Tensor]
    factor: float
    slope: float
    """What the gradient promises of the user's step."""


def find_direction(probe: StepProbe, grads: list[Tensor], deltas: list[Tensor]) -> Direction:
    """That of the step itself, or of a longer one where rounding spoils it. Moves the parameters."""
    own = _direction(grads, deltas, 1.0)
    needed = _needed(probe)
    length, factor = _length(deltas), 1.0
    for _ in range(MOST_TRIES):
        if length >= needed:
            break
        factor *= max(2 * needed / length, 2.0) if length else FIRST_FACTOR
        if not probe.step_at(factor):
            return own
        longer = sums.differences(probe.parameters, probe.start)
        length = _length(longer)
        if not math.isfinite(length):
            return own
    return own if factor == 1.0 or not length else _direction(grads, longer, factor)


def _direction(grads: list[Tensor], deltas: list[Tensor], factor: float) -> Direction:
    return Direction(deltas=deltas, factor=factor, slope=sum(sums.inner_products(grads, deltas)) / factor)


def _needed(probe: StepProbe) -> float:
    """The length above which a step has a direction: `COARSE` units in the last place of all weights."""
    spacings = [_spacing(each) for each in probe.start]
    weights = sums.norms(probe.start)
    return COARSE * math.sqrt(sum((eps * norm) ** 2 for eps, norm in zip(spacings, weights, strict=True)))


def _spacing(tensor: Tensor) -> float:
    return torch.finfo(tensor.dtype).eps if tensor.is_floating_point() or tensor.is_complex() else 0.0


def _length(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(norm**2 for norm in sums.norms(tensors)))


# Where on the depth axis a step happens: its parts by parameter, by block and by range of blocks.

RANGES = 4  # ours: quarters of the depth tell early from late, and one pass each is affordable


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step in tensors, all lists in the same order."""

    names: list[str]
    start: list[Tensor]
    grads: list[Tensor]
    deltas: list[Tensor]


def by_parameter(step: Step, blocks: Sequence[DepthBlock]) -> tuple[ParameterStep, ...]:
    homes: dict[str, str] = {}
    for block in blocks:
        for name in block.params:
            homes.setdefault(name, block.name)
    products = sums.inner_products(step.grads, step.deltas)
    grads, updates, weights = (sums.norms(each) for each in (step.grads, step.deltas, step.start))
    return tuple(
        ParameterStep(
            name=name,
            block=homes.get(name, ""),
            count=step.start[i].numel(),
            dtype=str(step.start[i].dtype).removeprefix("torch."),
            predicted=products[i],
            grad_norm=grads[i],
            update_norm=updates[i],
            weight_norm=weights[i],
            swallowed=_swallowed(step, i, updates[i], weights[i]),
        )
        for i, name in enumerate(step.names)
    )


def _swallowed(step: Step, index: int, update_norm: float, weight_norm: float) -> float | None:
    dtype = step.start[index].dtype
    if step.start[index].is_complex() or not sums.may_swallow(update_norm, weight_norm, dtype):
        return None
    return sums.swallowed_share(step.grads[index], step.deltas[index])


def repeated_blocks(profile: Profile) -> list[DepthBlock]:
    """The blocks that a deeper network has more of: residual ones, else all between the ends of the longest stream."""
    if not profile.streams:
        return []
    index = max(range(len(profile.streams)), key=lambda each: profile.streams[each].blocks)
    blocks = [block for block in profile.blocks if block.stream == index]
    residual = [block for block in blocks if block.residual is not None]
    return residual if len(residual) > 1 else [block for block in blocks[1:-1] if block.weights]


def by_block(parameters: Sequence[ParameterStep], profile: Profile | None) -> tuple[BlockStep, ...]:
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
        share=share(predicted, total),
        grad_square=sum(each.grad_norm**2 for each in parts),
        update_norm=math.sqrt(sum(each.update_norm**2 for each in parts)),
        weight_norm=math.sqrt(sum(each.weight_norm**2 for each in parts)),
    )


def by_range(blocks: Sequence[BlockStep], total: float) -> tuple[DepthRange, ...]:
    """Quarters of the depth axis, from the input to the loss."""
    return tuple(
        DepthRange(
            first=part[0].name,
            last=part[-1].name,
            blocks=len(part),
            share=share(sum(each.predicted for each in part), total),
        )
        for part in quarters(blocks)
    )


def quarters(blocks: Sequence[BlockStep]) -> list[Sequence[BlockStep]]:
    edges = [round(i * len(blocks) / RANGES) for i in range(RANGES + 1)]
    return [blocks[a:b] for a, b in pairwise(edges) if b > a]


def share(part: float, total: float) -> float | None:
    return part / total if total and math.isfinite(total) else None
