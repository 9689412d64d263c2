"""A twin of a Case: model, optimiser and loss copied together, so that whatever is trained is not the user's."""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from leadline.case import Case
from leadline.errors import InputError
from leadline.tracer.inputs import unwrap
from leadline.tracer.names import ModelIndex, index_model

STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
DEEP = (
    20_000  # Python frames: deepcopy takes some eight a level of nesting, so this is over two thousand levels
)
Memo = dict[int, Any]


def twin(case: Case) -> Case:
    """The case with a copy of its model, optimiser and loss; who was who inside them, and who shared, stays so.

    The batch is shared. Step hooks of the user's optimiser stay behind, for they belong to real steps; those that a
    recipe of ours put there come along. Raises InputError for what cannot be copied.
    """
    own = unwrap(case.model)
    model_index = index_model(own)
    memo = _results_of_hooks(model_index)
    with _room():
        model = _copied(own, memo, f"the model ({type(own).__qualname__})")
        loss = _loss(case.loss, model_index, memo)
        optimizer = None if case.optimizer is None else _optimizer(case.optimizer, memo)
    _share_again(model_index, index_model(model))
    return replace(case, model=model, loss=loss, optimizer=optimizer)


def _copied(thing: Any, memo: Memo, name: str) -> Any:
    try:
        return copy.deepcopy(thing, memo)
    except Exception as error:
        raise InputError(
            expected=f"{name} as something that can be copied (copy.deepcopy), for fixes are tried on copies",
            got=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}",
            fix="take open files, locks, loggers and results of earlier passes off the object, or build it afresh",
        ) from error


def _results_of_hooks(model_index: ModelIndex) -> Memo:
    """Tensors with a history that modules keep on themselves (weight_norm, feature stashes): deepcopy refuses them."""
    kept = [item for each in model_index.modules.values() for item in vars(each.item).values()]
    return {id(item): item.detach().clone() for item in kept if isinstance(item, Tensor) and not item.is_leaf}


def _loss(loss: Any, model_index: ModelIndex, memo: Memo) -> Any:
    """A loss that is a module, or a method of the model, is copied with it; a function is what it is."""
    if isinstance(loss, nn.Module):
        return _copied(loss, memo, f"the loss ({type(loss).__qualname__})")
    if isinstance(loss, MethodType) and id(loss.__self__) in model_index.modules:
        return MethodType(loss.__func__, memo[id(loss.__self__)])
    return loss


def _optimizer(optimizer: Optimizer, memo: Memo) -> Optimizer:
    """All of it: torch's own copy loses most attributes, and a scheduler's patch of `step` calls the original."""
    made: Optimizer = object.__new__(type(optimizer))
    memo[id(optimizer)] = made
    own = {name: item for name, item in vars(optimizer).items() if name not in (*STEP_HOOKS, "step")}
    vars(made).update(_copied(own, memo, f"the optimiser ({type(optimizer).__qualname__})"))
    for name in STEP_HOOKS:
        hooks = vars(optimizer).get(name, {})
        ours = OrderedDict((key, hook) for key, hook in hooks.items() if getattr(hook, "part_of_step", False))
        vars(made)[name] = copy.deepcopy(ours, memo)
    return made


def _share_again(old: ModelIndex, new: ModelIndex) -> None:
    """Parameters that are different objects over the same memory (`a.weight.data = b.weight.data`) share it again."""
    first: dict[tuple[Any, ...], nn.Parameter] = {}
    for before, after in zip(old.parameters.values(), new.parameters.values(), strict=True):
        if before.item.layout is not torch.strided or before.item.is_meta or not before.item.numel():
            continue
        place = (before.item.data_ptr(), before.item.shape, before.item.stride(), before.item.dtype)
        if place in first:
            after.item.data = first[place].data
        first.setdefault(place, after.item)


@contextmanager
def _room() -> Iterator[None]:
    """Recursion of Python in Python takes no C stack, so that deeply nested models can be copied."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, DEEP))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
