"""Where on the depth axis a step happens: its parts by parameter, by block and by range of blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from leadline.records import Block, BlockStep, DepthRange, ParameterStep, Profile
from leadline.updating import amounts

RANGES = 4  # ours: quarters of the depth tell early from late, and one pass each is affordable


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step in tensors, all lists in the same order."""

    names: list[str]
    start: list[Tensor]
    grads: list[Tensor]
    deltas: list[Tensor]


def by_parameter(step: Step, blocks: Sequence[Block]) -> tuple[ParameterStep, ...]:
    homes: dict[str, str] = {}
    for block in blocks:
        for name in block.params:
            homes.setdefault(name, block.name)
    products = amounts.inner(step.grads, step.deltas)
    grads, updates, weights = (amounts.norms(each) for each in (step.grads, step.deltas, step.start))
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
    if step.start[index].is_complex() or not amounts.may_swallow(update_norm, weight_norm, dtype):
        return None
    return amounts.swallowed(step.grads[index], step.deltas[index])


def repeated_blocks(profile: Profile) -> list[Block]:
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


def _block(block: Block, parts: Sequence[ParameterStep], total: float, repeated: bool) -> BlockStep:
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
