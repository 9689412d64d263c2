"""The layout of vectors: block metrics of a profile, and the block and symmetry of each parameter."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import replace
from itertools import zip_longest
from typing import TypeVar

import msgspec

from leadline.checks._history import NOT_MEASURED, RunLayout, label_positions
from leadline.readings.symmetry.equilibrium import Equilibrium, equilibrium
from leadline.records import Attention, DepthBlock, ParamGroup, Profile
from leadline.records import Optimizer as OptimizerRecord

AXIS = "blocks"
HEADS_AXIS = "heads"
EXPERTS_AXIS = "experts"
Numbers = dict[str, "array[float]"]


def block_labels(profile: Profile) -> tuple[str, ...]:
    return tuple(block.name for block in profile.blocks)


def block_numbers(profile: Profile) -> Numbers:
    """Return one vector over blocks for each block metric that was measured."""
    vectors = {
        name: array("f", [_or_not_measured(get(block)) for block in profile.blocks])
        for name, get in _BLOCK_METRICS.items()
    }
    attentions = profile.facts.attentions if profile.facts is not None else ()
    for name, get_attention in _ATTENTION_METRICS.items():
        vectors[name] = _largest_by_block(len(profile.blocks), attentions, get_attention)
    return {name: values for name, values in vectors.items() if any(each != NOT_MEASURED for each in values)}


def _or_not_measured(value: float | None) -> float:
    return NOT_MEASURED if value is None else value


def _branch_skip(block: DepthBlock) -> float | None:
    r"""Return $\sqrt{E[b^2] / E[s^2]}$ of branch $b$ and skip $s$."""
    residual = block.residual
    if residual is None or residual.branch_ms is None or not residual.skip_ms:
        return None
    return math.sqrt(residual.branch_ms / residual.skip_ms) if residual.branch_ms >= 0 else math.nan


def _dead(block: DepthBlock) -> float | None:
    return block.units.dead / block.units.count if block.units is not None and block.units.count else None


def _saturated(block: DepthBlock) -> float | None:
    units = block.units
    if units is None or units.saturated is None or not units.count:
        return None
    return units.saturated / units.count


_BLOCK_METRICS: dict[str, Callable[[DepthBlock], float | None]] = {
    "forward_ms": lambda block: block.forward_ms,
    "backward_ms": lambda block: block.backward_ms,
    "branch_skip": _branch_skip,
    "likeness": lambda block: block.likeness,
    "dead": _dead,
    "saturated": _saturated,
}


def _entropy(attention: Attention) -> float | None:
    r"""Return the Rényi entropy of order 2, $-\ln \sum p^2$: 0 if one key of $n$ gets all, $\ln n$ if all get equal."""
    return -math.log(attention.purity) if attention.purity > 0 else None


_ATTENTION_METRICS: dict[str, Callable[[Attention], float | None]] = {
    "attention_logit": lambda attention: attention.logit_max,
    "attention_entropy": _entropy,
}


def _largest_by_block(
    block_count: int, attentions: tuple[Attention, ...], get: Callable[[Attention], float | None]
) -> array[float]:
    """Return each block's largest value; also for entropy, because in a collapse all attentions of a block fall."""
    values = array("f", [NOT_MEASURED] * block_count)
    for each in attentions:
        value = get(each)
        if 0 <= each.block < block_count and value is not None:
            values[each.block] = max(values[each.block], value)
    return values


def head_labels(profile: Profile) -> tuple[str, ...]:
    """Return "module number" for each head of each attention whose heads are known."""
    attentions = profile.facts.attentions if profile.facts is not None else ()
    return tuple(f"{each.module} {head}" for each in attentions for head in range(len(each.head_logits)))


def head_numbers(profile: Profile) -> Numbers:
    """Return the largest logit of each head, in the order of `head_labels`."""
    attentions = profile.facts.attentions if profile.facts is not None else ()
    logits = [logit for each in attentions for logit in each.head_logits]
    return {"head_logit": array("f", logits)} if logits else {}


def expert_labels(profile: Profile) -> tuple[str, ...]:
    """Return "weight number" for each expert of each router."""
    routers = profile.parts.routers if profile.parts is not None else ()
    return tuple(f"{each.weight} {expert}" for each in routers for expert in range(each.experts))


def expert_numbers(profile: Profile) -> Numbers:
    """Return the tokens and the gradient norm of each expert, in the order of `expert_labels`."""
    routers = profile.parts.routers if profile.parts is not None else ()
    if not routers:
        return {}
    unknown = [NOT_MEASURED]
    gradients = [each.expert_gradients or unknown * each.experts for each in routers]
    numbers = {"expert_tokens": array("f", [tokens for each in routers for tokens in each.load])}
    if any(each.expert_gradients for each in routers):
        numbers["expert_grad_norm"] = array("f", [norm for each in gradients for norm in each])
    return numbers


# What run checks need to know of each parameter: its block, its symmetry and its equilibrium under weight decay.

T = TypeVar("T")


def layout_of(parameters: tuple[str, ...], profile: Profile) -> RunLayout:
    """Return the depth axis and the block of each parameter; a complete profile adds symmetry and equilibrium."""
    block_of = {name: index for index, block in enumerate(profile.blocks) for name in block.params}
    layout = RunLayout(
        parameters=parameters,
        blocks=block_labels(profile),
        heads=head_labels(profile),
        experts=expert_labels(profile),
        parameter_blocks=tuple(block_of.get(name) for name in parameters),
    )
    return layout if profile.symmetry is None else _with_symmetry(layout, profile)


def merge_layouts(known: RunLayout, new: RunLayout) -> RunLayout:
    """Return the axes of a pass merged with those of earlier passes.

    A pass need not run all blocks: some are dropped at random, some appear later. So blocks are only added to the
    axis, each at its position in its pass.
    """
    blocks = merge_labels(known.blocks, new.blocks)
    known_positions, new_positions = (
        label_positions(blocks, known.blocks),
        label_positions(blocks, new.blocks),
    )
    moved = move_layout(known, new.parameters)

    def position(known_block: int | None, new_block: int | None) -> int | None:
        if new_block is not None:
            return new_positions[new_block]
        return None if known_block is None else known_positions[known_block]

    pairs = zip_longest(moved.parameter_blocks, new.parameter_blocks)
    source = new if new.invariant else moved
    return replace(
        source,
        blocks=blocks,
        heads=merge_labels(known.heads, new.heads),
        experts=merge_labels(known.experts, new.experts),
        parameter_blocks=tuple(position(*pair) for pair in pairs),
    )


def move_layout(known: RunLayout, parameters: tuple[str, ...]) -> RunLayout:
    """Return the layout for another list of parameters; an optimizer or a model may get new ones."""
    if parameters == known.parameters:
        return known
    positions = label_positions(known.parameters, parameters)

    def moved(values: tuple[T, ...], *, new: T) -> tuple[T, ...]:
        return tuple(new if each is None else values[each] for each in positions) if values else ()

    return replace(
        known,
        parameters=parameters,
        parameter_blocks=moved(known.parameter_blocks, new=None),
        invariant=moved(known.invariant, new=False),
        rotation=moved(known.rotation, new=None),
        settling=moved(known.settling, new=0.0),
    )


def merge_labels(known: tuple[str, ...], new: tuple[str, ...]) -> tuple[str, ...]:
    """Return all labels in an order that agrees with both lists where they agree with each other."""
    merged = list(known)
    position = 0
    for label, known_position in zip(new, label_positions(known, new), strict=True):
        if known_position is None:
            merged.insert(position, label)
        elif label in merged[position:]:
            position = merged.index(label, position)
        position += 1
    return tuple(merged)


def _with_symmetry(layout: RunLayout, profile: Profile) -> RunLayout:
    assert profile.symmetry is not None  # the caller has tested it
    invariant = set(profile.symmetry.invariant)
    by_name = _equilibria(profile) if profile.optimizer is not None else {}
    equilibria = [by_name.get(name) if name in invariant else None for name in layout.parameters]
    return replace(
        layout,
        invariant=tuple(name in invariant for name in layout.parameters),
        rotation=tuple(None if each is None else each.angle for each in equilibria),
        settling=tuple(0.0 if each is None else each.steps for each in equilibria),
    )


def _equilibria(profile: Profile) -> dict[str, Equilibrium | None]:
    """Return the equilibrium of every optimized tensor at a learning rate of 1; run checks scale it by the rate."""
    assert profile.optimizer is not None  # the caller has tested it
    assert profile.symmetry is not None
    groups = _groups(profile.optimizer)
    equilibria: dict[str, Equilibrium | None] = {}
    for tensor in profile.symmetry.tensors:
        group = groups.get(tensor.name)
        if group is not None:
            radius = tensor.norm * tensor.grad_norm if tensor.norm and tensor.grad_norm else None
            unit_rate = msgspec.structs.replace(group, lr=1.0)
            equilibria[tensor.name] = equilibrium(
                profile.optimizer.name, unit_rate, count=tensor.count, radius=radius
            )
    return equilibria


def _groups(optimizer: OptimizerRecord) -> dict[str, ParamGroup]:
    return {name: group for group in optimizer.groups for name in group.parameters}
