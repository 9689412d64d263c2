"""Copy a Case: model, optimizer and loss together, so that nothing of the user's is trained."""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from leadline.case import Case
from leadline.errors import CopyError
from leadline.fixes._engine.closures import ReboundFunctions
from leadline.fixes._engine.edits import EditSession, apply_edits
from leadline.joint_optimizer import as_passed
from leadline.records import Edit
from leadline.tracer.inputs import unwrap
from leadline.tracer.names import ModelIndex, index_model
from leadline.tracer.restore import preserve_process_state
from leadline.tracer.values import detached_copies

STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")

# Heuristic: deepcopy takes about eight Python frames per level of nesting, so this is enough for 2500 levels.
MIN_RECURSION_LIMIT = 20_000

Memo = dict[int, Any]
Factory = Callable[[], Case]


@dataclass(frozen=True, slots=True)
class RebuildableCase(Case):
    """A case whose copies come from its factory, for models that deepcopy cannot separate from the original."""

    factory: Factory | None = None
    original: nn.Module | None = None
    """The model of the first result of the factory, whose parameters every copy gets."""
    edits: tuple[Edit, ...] = ()
    """Edits that were made since."""
    random: list[bool] = field(default_factory=list)
    """One entry per copy: whether the factory gave it other parameters than the original's."""

    def rebuild(self) -> RebuildableCase:
        """The case built anew, with the parameters of the original and all edits."""
        assert self.factory is not None  # `rebuildable` sets both
        assert self.original is not None
        with preserve_process_state():
            fresh = self.factory()
        model = unwrap(fresh.model)
        _check_separate(model, self.original)
        self.random.append(_take_state(model, self.original))
        built = replace(self, model=model, loss=fresh.loss, optimizer=fresh.optimizer)
        apply_edits(EditSession(model=model, optimizer=built.joint_optimizer), self.edits)
        return built


def rebuildable(case: Case, factory: Factory) -> RebuildableCase:
    """The case with copies from `factory`, which must build it in the same way each time."""
    own = unwrap(case.model)
    return RebuildableCase(
        own, case.inputs, case.targets, case.loss, case.optimizer, case.batches, factory=factory, original=own
    )


def _check_separate(model: nn.Module, original: nn.Module) -> None:
    own = {id(each) for each in original.parameters()}
    if any(id(each) in own for each in model.parameters()):
        raise CopyError(
            expected="a factory that builds a new model each time it is called",
            got="parameters of the model that it returned before",
            fix="build the model inside the factory, not at the top of the file",
        )


def _take_state(model: nn.Module, original: nn.Module) -> bool:
    """Give a rebuilt model the state of the original; return whether the factory had given it another."""
    state, other = original.state_dict(), model.state_dict()
    if {key: each.shape for key, each in state.items()} != {key: each.shape for key, each in other.items()}:
        raise CopyError(
            expected="a factory that builds the same model each time it is called",
            got="a second model with other parameters or shapes",
            fix="let the factory depend on nothing that changes between two calls",
        )
    differs = any(not torch.equal(each, other[key]) for key, each in state.items())
    if differs:
        model.load_state_dict(state)
    return differs


def copy_case(case: Case) -> Case:
    """The case with a copy of its model, optimizer and loss, in which everything that was shared is shared again.

    The batch is not copied. Step hooks of the user's optimizer are left out, because they belong to real steps; those
    that a recipe added are copied. Functions whose closures hold parts of the model hold those of the copy. Raises
    CopyError for objects that cannot be copied.
    """
    if isinstance(case, RebuildableCase):
        return case.rebuild()
    own = unwrap(case.model)
    model_index = index_model(own)
    memo = detached_copies(own, case.loss, *case.optimizers)
    functions = ReboundFunctions(model_index, memo)
    if isinstance(case.loss, FunctionType):
        functions.add(case.loss)
    with _deep_recursion():
        model = _deepcopy(own, memo, f"the model ({type(own).__qualname__})")
        functions.fill()
        loss = _copy_loss(case.loss, model_index, memo)
        copies = tuple(_copy_optimizer(member, memo) for member in case.optimizers)
    _share_memory(model_index, index_model(model))
    return replace(case, model=model, loss=loss, optimizer=as_passed(copies))


def _deepcopy(value: Any, memo: Memo, name: str) -> Any:
    try:
        return copy.deepcopy(value, memo)
    except Exception as error:
        raise CopyError(
            expected=f"{name} to support copy.deepcopy, because fixes are tried on copies",
            got=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}",
            fix="remove open files, locks, loggers and results of earlier passes from the object, or pass the function "
            "that builds it: leadline.fix(make_case)",
        ) from error


def _copy_loss(loss: Any, model_index: ModelIndex, memo: Memo) -> Any:
    """A copy of a loss that is a module, a method of the model, or a function over the model."""
    if isinstance(loss, nn.Module):
        return _deepcopy(loss, memo, f"the loss ({type(loss).__qualname__})")
    if isinstance(loss, MethodType) and id(loss.__self__) in model_index.modules:
        return MethodType(loss.__func__, memo[id(loss.__self__)])
    return memo.get(id(loss), loss) if isinstance(loss, FunctionType) else loss


def _copy_optimizer(optimizer: Optimizer, memo: Memo) -> Optimizer:
    """A copy with all attributes: torch's own copy loses most, and a scheduler's patch of `step` calls the original."""
    copied: Optimizer = object.__new__(type(optimizer))
    memo[id(optimizer)] = copied
    attributes = {name: item for name, item in vars(optimizer).items() if name not in (*STEP_HOOKS, "step")}
    vars(copied).update(_deepcopy(attributes, memo, f"the optimizer ({type(optimizer).__qualname__})"))
    for name in STEP_HOOKS:
        hooks = vars(optimizer).get(name, {})
        from_recipe = OrderedDict(
            (key, hook) for key, hook in hooks.items() if getattr(hook, "part_of_step", False)
        )
        vars(copied)[name] = copy.deepcopy(from_recipe, memo)
    return copied


def _share_memory(old: ModelIndex, new: ModelIndex) -> None:
    """Let parameters share memory again that shared it as separate objects (`a.weight.data = b.weight.data`)."""
    first: dict[tuple[Any, ...], nn.Parameter] = {}
    for before, after in zip(old.parameters.values(), new.parameters.values(), strict=True):
        if before.item.layout is not torch.strided or before.item.is_meta or not before.item.numel():
            continue
        place = (before.item.data_ptr(), before.item.shape, before.item.stride(), before.item.dtype)
        if place in first:
            after.item.data = first[place].data
        first.setdefault(place, after.item)


@contextmanager
def _deep_recursion() -> Iterator[None]:
    """Raise the recursion limit: Python calls use no C stack, so deeply nested models can be copied safely."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, MIN_RECURSION_LIMIT))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
