"""What run checks must know of each parameter and block beside its numbers."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import replace
from itertools import zip_longest
from typing import TypeVar

import msgspec

from leadline.checks._history import NOT_MEASURED, Layout, label_positions
from leadline.readings.symmetry.equilibrium import Equilibrium, equilibrium
from leadline.records import Attention, DepthBlock, ParamGroup, Profile
from leadline.records import Optimizer as OptimizerRecord

AXIS = "blocks"
Numbers = dict[str, "array[float]"]


def block_labels(profile: Profile) -> tuple[str, ...]:
    return tuple(block.name for block in profile.blocks)


def block_numbers(profile: Profile) -> Numbers:
    """Second moments forward and backward, branch against skip, likeness, dead and saturated units, attention."""
    found = {
        name: array("f", [_or_missing(get(block)) for block in profile.blocks])
        for name, get in _OF_BLOCK.items()
    }
    attentions = profile.facts.attentions if profile.facts is not None else ()
    for name, of_attention in _OF_ATTENTION.items():
        found[name] = _strongest(len(profile.blocks), attentions, of_attention)
    return {name: values for name, values in found.items() if any(each != NOT_MEASURED for each in values)}


def _or_missing(value: float | None) -> float:
    return NOT_MEASURED if value is None else value


def _branch_skip(block: DepthBlock) -> float | None:
    r"""$\sqrt{E[b^2] / E[s^2]}$ of branch $b$ and skip $s$."""
    found = block.residual
    if found is None or found.branch_ms is None or not found.skip_ms:
        return None
    return math.sqrt(found.branch_ms / found.skip_ms) if found.branch_ms >= 0 else math.nan


def _dead(block: DepthBlock) -> float | None:
    return block.units.dead / block.units.count if block.units is not None and block.units.count else None


def _saturated(block: DepthBlock) -> float | None:
    units = block.units
    return (
        None if units is None or units.saturated is None or not units.count else units.saturated / units.count
    )


_OF_BLOCK: dict[str, Callable[[DepthBlock], float | None]] = {
    "forward_ms": lambda block: block.forward_ms,
    "backward_ms": lambda block: block.backward_ms,
    "branch_skip": _branch_skip,
    "likeness": lambda block: block.likeness,
    "dead": _dead,
    "saturated": _saturated,
}


def _entropy(attention: Attention) -> float | None:
    r"""$-\ln \sum p^2$ (Rényi's, of order 2): 0 if one of $n$ keys gets everything, $\ln n$ if all get the same."""
    return -math.log(attention.purity) if attention.purity > 0 else None


_OF_ATTENTION: dict[str, Callable[[Attention], float | None]] = {
    "attention_logit": lambda attention: attention.logit_max,
    "attention_entropy": _entropy,
}


def _strongest(
    blocks: int, attentions: tuple[Attention, ...], get: Callable[[Attention], float | None]
) -> array[float]:
    """The largest of a block's attentions; of entropies the largest too, as all of them must fall for a collapse."""
    found = array("f", [NOT_MEASURED] * blocks)
    for each in attentions:
        value = get(each)
        if 0 <= each.block < blocks and value is not None:
            found[each.block] = max(found[each.block], value)
    return found


# What alarms must know of each parameter beside its numbers: its block, its symmetry, and where decay takes it.

T = TypeVar("T")


def layout_of(parameters: tuple[str, ...], profile: Profile) -> Layout:
    """The depth axis, and of each parameter its block; with a whole profile also its symmetry and equilibrium."""
    homes = {name: at for at, block in enumerate(profile.blocks) for name in block.params}
    placed = Layout(
        parameters=parameters,
        blocks=block_labels(profile),
        parameter_blocks=tuple(homes.get(name) for name in parameters),
    )
    return placed if profile.symmetry is None else _with_symmetry(placed, profile)


def joined(known: Layout, found: Layout) -> Layout:
    """The axes of a pass and of those before it.

    A pass need not have all blocks: some are left out at random, some come later. So blocks are only added to the axis,
    each where it lies in its pass.
    """
    blocks = union(known.blocks, found.blocks)
    before, now = label_positions(blocks, known.blocks), label_positions(blocks, found.blocks)
    moved = carried(known, found.parameters)
    homes = [
        now[new] if new is not None else None if old is None else before[old]
        for old, new in zip_longest(moved.parameter_blocks, found.parameter_blocks)
    ]
    source = found if found.invariant else moved
    return replace(source, blocks=blocks, parameter_blocks=tuple(homes))


def carried(known: Layout, parameters: tuple[str, ...]) -> Layout:
    """What is known, for other parameters: an optimiser may get more of them, and a model too."""
    if parameters == known.parameters:
        return known
    at = label_positions(known.parameters, parameters)

    def moved(values: tuple[T, ...], *, new: T) -> tuple[T, ...]:
        return tuple(new if place is None else values[place] for place in at) if values else ()

    return replace(
        known,
        parameters=parameters,
        parameter_blocks=moved(known.parameter_blocks, new=None),
        invariant=moved(known.invariant, new=False),
        rotation=moved(known.rotation, new=None),
        settling=moved(known.settling, new=0.0),
    )


def union(known: tuple[str, ...], found: tuple[str, ...]) -> tuple[str, ...]:
    """All labels, in an order that keeps both where they agree."""
    merged = list(known)
    behind = 0
    for label, place in zip(found, label_positions(known, found), strict=True):
        if place is None:
            merged.insert(behind, label)
        else:
            behind = merged.index(label, behind) if label in merged[behind:] else behind
        behind += 1
    return tuple(merged)


def _with_symmetry(placed: Layout, profile: Profile) -> Layout:
    assert profile.symmetry is not None  # asked before
    invariant = set(profile.symmetry.invariant)
    found = _equilibria(profile) if profile.optimizer is not None else {}
    known = [found.get(name) if name in invariant else None for name in placed.parameters]
    return Layout(
        parameters=placed.parameters,
        blocks=placed.blocks,
        parameter_blocks=placed.parameter_blocks,
        invariant=tuple(name in invariant for name in placed.parameters),
        rotation=tuple(None if each is None else each.angle for each in known),
        settling=tuple(0.0 if each is None else each.steps for each in known),
    )


def _equilibria(profile: Profile) -> dict[str, Equilibrium | None]:
    """Of every tensor that has a group, at a learning rate of 1: alarms scale it by the rate of the step."""
    assert profile.optimizer is not None  # asked before
    assert profile.symmetry is not None
    groups = _groups(profile.optimizer)
    found: dict[str, Equilibrium | None] = {}
    for tensor in profile.symmetry.tensors:
        group = groups.get(tensor.name)
        if group is not None:
            radius = tensor.norm * tensor.grad_norm if tensor.norm and tensor.grad_norm else None
            at_one = msgspec.structs.replace(group, lr=1.0)
            found[tensor.name] = equilibrium(
                profile.optimizer.name, at_one, count=tensor.count, radius=radius
            )
    return found


def _groups(optimizer: OptimizerRecord) -> dict[str, ParamGroup]:
    return {name: group for group in optimizer.groups for name in group.parameters}
