"""Read an optimizer into a record: its groups, with the parameters by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from leadline.joint_optimizer import members_of
from leadline.ops.optimizers import (
    DECOUPLING_OPTIONS,
    FIXED_DECAY_OPTIONS,
    OptimizerRule,
    find_rule,
    joint_name,
    row_name,
)
from leadline.records import Optimizer, ParamGroup
from leadline.records.codec import spell_float
from leadline.tracer.names import ModelIndex

_NOT_OPTIONS = ("params", "lr", "weight_decay", "param_names")


def read_optimizer(optimizer: torch.optim.Optimizer, model_index: ModelIndex) -> Optimizer:
    """Return name, groups and step count of an optimizer, without changing it."""
    members = members_of(optimizer)
    names = {key: named.names[0] for key, named in model_index.parameters.items()}
    return Optimizer(
        name=joint_name(type(member).__name__ for member in members),
        groups=tuple(
            _group(group, names, member, place)
            for place, member in enumerate(members)
            for group in member.param_groups
        ),
        steps=max((_steps(state) for state in optimizer.state.values()), default=0),
    )


def rule_of(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> OptimizerRule | None:
    """What a step of a live optimizer does with one of its groups; None if that is not known."""
    name = _known_parent(optimizer) or type(optimizer).__name__
    return find_rule(name, {**_decay_attributes(optimizer), **group})


def _group(
    group: Mapping[str, Any], names: Mapping[int, str], optimizer: torch.optim.Optimizer, member: int
) -> ParamGroup:
    lr = group.get("lr")
    options = {**_decay_attributes(optimizer), **group}
    return ParamGroup(
        parameters=tuple(names.get(id(parameter), "?") for parameter in group["params"]),
        lr=None if lr is None else float(lr),
        weight_decay=float(group.get("weight_decay") or 0.0),
        options={
            key: _as_json(item) for key, item in options.items() if key not in _NOT_OPTIONS and _is_json(item)
        },
        optimizer=type(optimizer).__name__,
        member=member,
        known_as=_known_parent(optimizer),
    )


def _decay_attributes(optimizer: torch.optim.Optimizer) -> dict[str, bool]:
    """How decay is applied, where the optimizer says so for all groups in an attribute of its own."""
    attributes = vars(optimizer)
    names = (*DECOUPLING_OPTIONS, *FIXED_DECAY_OPTIONS)
    return {name: bool(attributes[name]) for name in names if isinstance(attributes.get(name), bool | int)}


def _known_parent(optimizer: torch.optim.Optimizer) -> str:
    own, *parents = (each.__name__ for each in type(optimizer).__mro__)
    if row_name(own) is not None:
        return ""
    return next((each for each in parents if row_name(each) is not None), "")


def _steps(state: Mapping[str, Any]) -> int:
    """Return the step count. SGD does not count; if it has a momentum, it has made at least one step."""
    step = state.get("step")
    if isinstance(step, int | float | Tensor):
        return int(step)
    return int(any(item is not None for item in state.values()))


def _is_json(item: Any) -> bool:
    if isinstance(item, list | tuple):
        return all(_is_json(each) for each in item)
    return (
        item is None
        or isinstance(item, bool | int | float | str)
        or (isinstance(item, Tensor) and item.numel() == 1)
    )


def _as_json(item: Any) -> Any:
    if isinstance(item, Tensor):
        item = item.item()
    if isinstance(item, float):
        return spell_float(item)
    return [_as_json(each) for each in item] if isinstance(item, list | tuple) else item


def can_move(parameter: Tensor) -> bool:
    """Return whether a step can change it: torch adds to no integers, 8-bit numbers or expanded tensors."""
    is_addable = parameter.is_complex() or (parameter.is_floating_point() and parameter.element_size() > 1)
    if not is_addable or parameter.layout is not torch.strided:
        return is_addable
    return all(size <= 1 or stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True))
