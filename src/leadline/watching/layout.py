"""What alarms must know of each parameter beside its numbers: its block, its symmetry, and where decay takes it."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest
from typing import TypeVar

import msgspec

from leadline.alarms import Layout
from leadline.alarms.history import places
from leadline.records import Optimizer as OptimizerRecord
from leadline.records import ParamGroup, Profile
from leadline.symmetry.equilibrium import Equilibrium, equilibrium
from leadline.watching.blocks import block_labels

T = TypeVar("T")


def layout_of(parameters: tuple[str, ...], profile: Profile) -> Layout:
    """The depth axis, and of each parameter its block; with a whole profile also its symmetry and equilibrium."""
    homes = {name: at for at, block in enumerate(profile.blocks) for name in block.params}
    placed = Layout(
        parameters=parameters,
        blocks=block_labels(profile),
        homes=tuple(homes.get(name) for name in parameters),
    )
    return placed if profile.symmetry is None else _with_symmetry(placed, profile)


def joined(known: Layout, found: Layout) -> Layout:
    """The axes of a pass and of those before it.

    A pass need not have all blocks: some are left out at random, some come later. So blocks are only added to the axis,
    each where it lies in its pass.
    """
    blocks = union(known.blocks, found.blocks)
    before, now = places(blocks, known.blocks), places(blocks, found.blocks)
    moved = carried(known, found.parameters)
    homes = [
        now[new] if new is not None else None if old is None else before[old]
        for old, new in zip_longest(moved.homes, found.homes)
    ]
    source = found if found.invariant else moved
    return replace(source, blocks=blocks, homes=tuple(homes))


def carried(known: Layout, parameters: tuple[str, ...]) -> Layout:
    """What is known, for other parameters: an optimiser may get more of them, and a model too."""
    if parameters == known.parameters:
        return known
    at = places(known.parameters, parameters)

    def moved(values: tuple[T, ...], *, new: T) -> tuple[T, ...]:
        return tuple(new if place is None else values[place] for place in at) if values else ()

    return replace(
        known,
        parameters=parameters,
        homes=moved(known.homes, new=None),
        invariant=moved(known.invariant, new=False),
        rotation=moved(known.rotation, new=None),
        settling=moved(known.settling, new=0.0),
    )


def union(known: tuple[str, ...], found: tuple[str, ...]) -> tuple[str, ...]:
    """All labels, in an order that keeps both where they agree."""
    merged = list(known)
    behind = 0
    for label, place in zip(found, places(known, found), strict=True):
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
        homes=placed.homes,
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
