"""The optimiser as a record: its groups, in the model's parameter names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from leadline.records import Optimizer, ParamGroup
from leadline.records.codec import spell_float
from leadline.tracer.names import ModelIndex

_OWN_FIELDS = ("params", "lr", "weight_decay", "param_names")


def read_optimizer(optimizer: torch.optim.Optimizer, model_index: ModelIndex) -> Optimizer:
    """Name, groups and progress of an optimiser; nothing of it is changed."""
    names = {key: named.names[0] for key, named in model_index.parameters.items()}
    return Optimizer(
        name=type(optimizer).__name__,
        groups=tuple(_group(group, names) for group in optimizer.param_groups),
        steps=max((_steps(state) for state in optimizer.state.values()), default=0),
    )


def _group(group: Mapping[str, Any], names: Mapping[int, str]) -> ParamGroup:
    lr = group.get("lr")
    return ParamGroup(
        parameters=tuple(names.get(id(parameter), "?") for parameter in group["params"]),
        lr=None if lr is None else float(lr),
        weight_decay=float(group.get("weight_decay") or 0.0),
        options={
            key: _plain(item) for key, item in group.items() if key not in _OWN_FIELDS and _sayable(item)
        },
    )


def _steps(state: Mapping[str, Any]) -> int:
    """Most optimisers count; SGD only keeps a momentum, which tells that it has begun."""
    counted = state.get("step")
    if isinstance(counted, int | float | Tensor):
        return int(counted)
    return int(any(item is not None for item in state.values()))


def _sayable(item: Any) -> bool:
    if isinstance(item, list | tuple):
        return all(_sayable(each) for each in item)
    return (
        item is None
        or isinstance(item, bool | int | float | str)
        or (isinstance(item, Tensor) and item.numel() == 1)
    )


def _plain(item: Any) -> Any:
    if isinstance(item, Tensor):
        item = item.item()
    if isinstance(item, float):
        return spell_float(item)
    return [_plain(each) for each in item] if isinstance(item, list | tuple) else item
