"""What alarms must know of each parameter beside its numbers: its block, its symmetry, and where decay takes it."""

from __future__ import annotations

from msgspec.structs import replace

from leadline.alarms import Layout
from leadline.records import Optimizer, ParamGroup, Profile
from leadline.symmetry.equilibrium import Equilibrium, equilibrium
from leadline.watching.blocks import block_labels


def layout_of(parameters: tuple[str, ...], profile: Profile) -> Layout:
    """The depth axis, and of each parameter its block; with a whole profile also its symmetry and equilibrium."""
    homes = {name: at for at, block in enumerate(profile.blocks) for name in block.params}
    placed = Layout(
        parameters=parameters,
        blocks=block_labels(profile),
        homes=tuple(homes.get(name) for name in parameters),
    )
    return placed if profile.symmetry is None else _with_symmetry(placed, profile)


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
            at_one = replace(group, lr=1.0)
            found[tensor.name] = equilibrium(
                profile.optimizer.name, at_one, count=tensor.count, radius=radius
            )
    return found


def _groups(optimizer: Optimizer) -> dict[str, ParamGroup]:
    return {name: group for group in optimizer.groups for name in group.parameters}
