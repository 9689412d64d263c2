"""The Case of a step: from the tape of a real step to its model, its batch, and its loss as a function."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from leadline.case import Case
from leadline.errors import LeadlineError
from leadline.joint_optimizer import Optimizers
from leadline.runner.replayed import ReplayedLoss, ReplayedModel, replayed_model
from leadline.runner.step_slice import NotAttributableError, Outside, SlicedStep, slice_of
from leadline.runner.tape import Root, TapeState

NO_MODULE = (
    "no module that is trained is called as `module(x)`: the loss is computed from tensors alone, or by "
    "`module.forward(x)`, which runs no hooks. Call the module itself"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TapedStep:
    """What a real step trains, as found on its tape."""

    case: Case
    watched: nn.Module
    """What to watch: the module as the program calls it, or the model of the case if there are several."""
    calls: tuple[tuple[str, int], ...]
    """Name of each trained module and how often one backward pass calls it."""
    micro_batches: int
    """Backward passes of the step that do the same on different data."""
    is_replayed: bool
    """True if the model of the case repeats the tape, and not simply calls one module of the program."""


def step_case(state: TapeState, optimizers: Optimizers | None) -> TapedStep:
    """Return the Case of the step whose calls and backward passes are on the tape, or raise NotAttributableError."""
    if state.problem:
        raise NotAttributableError(state.problem)
    if not any(call.is_trainable for call in state.calls):
        raise NotAttributableError(NO_MODULE)
    slices = [slice_of(state, [root]) for root in state.roots]
    if len(slices) > 1 and _are_alike(state.roots, slices):
        return _accumulated(state, slices, optimizers)
    whole = slices[0] if len(slices) == 1 else slice_of(state, state.roots)
    return _taped_step(state, whole, _as_case(whole, optimizers))


# Micro-batches: several backward passes that do the same on different data.


def _are_alike(roots: Sequence[Root], slices: Sequence[SlicedStep]) -> bool:
    """Whether the backward passes come from the same line of the program and make the same calls, none in common."""
    parts = [each.part for each in slices]
    modules = {tuple(id(call.function) for call in part.calls.values() if call.module) for part in parts}
    counts = {len(part.calls) for part in parts}
    distinct = len({number for part in parts for number in part.calls})
    lines = {root.line for root in roots}
    return len(modules) == len(counts) == len(lines) == 1 and distinct == sum(
        len(part.calls) for part in parts
    )


def _taped_step(state: TapeState, step: SlicedStep, case: Case, micro_batches: int = 1) -> TapedStep:
    part = step.part
    called = {id(state.calls[number].called): state.calls[number].called for number in part.trained}
    only = next(iter(called.values())) if len(called) == 1 else None
    names = [part.calls[number].name for number in part.trained]
    return TapedStep(
        case=case,
        watched=case.model if only is None else only,
        calls=tuple((name, names.count(name)) for name in dict.fromkeys(names)),
        micro_batches=micro_batches,
        is_replayed=isinstance(case.model, ReplayedModel),
    )


def _accumulated(state: TapeState, slices: Sequence[SlicedStep], optimizers: Optimizers | None) -> TapedStep:
    """The first micro-batch with the loss times their number, because the step adds their gradients."""
    first, *others = slices
    case = _as_case(first, optimizers, factor=len(slices))
    batches = [_batch(each) for each in others]
    pairs = [(inputs, targets) if case.targets is not None else inputs for inputs, targets in batches]
    with suppress(LeadlineError):  # micro-batches of another form cannot be batches of the case
        case = replace(case, batches=pairs)
    return _taped_step(state, first, case, len(slices))


# The Case.


def _as_case(step: SlicedStep, optimizers: Optimizers | None, factor: int = 1) -> Case:
    part = step.part
    inputs, targets = _batch(step)
    module = part.calls[part.model[0]].module if _simple_inputs(step) is not None else None
    model = replayed_model(part) if module is None else module
    needs_loss = factor != 1 or part.loss or (not part.has_own_loss if module else len(part.crossing()) != 1)
    loss = ReplayedLoss(part, factor, is_simple=module is not None) if needs_loss else None
    return Case(model, inputs, targets, loss, optimizers)


def _batch(step: SlicedStep) -> tuple[Any, Any]:
    targets = [step.batch[index] for index in step.part.reads(step.part.loss)]
    inputs = _simple_inputs(step)
    if inputs is None:
        inputs = tuple(step.batch[index] for index in step.part.reads(step.part.model))
    return inputs, (targets[0] if len(targets) == 1 else tuple(targets) or None)


def _simple_inputs(step: SlicedStep) -> Any:
    """The arguments of the only module as the inputs of a Case; None if they cannot be written as such."""
    if not step.part.is_simple:
        return None
    call = step.part.calls[step.part.model[0]]

    def fill(leaf: Any) -> Any:
        return step.batch[leaf.index] if isinstance(leaf, Outside) else leaf

    args, kwargs = tree_map(fill, (call.args, call.kwargs))
    if not kwargs:
        return args[0] if len(args) == 1 and isinstance(args[0], Tensor) else args
    if not args:
        return dict(kwargs)
    assert call.module is not None  # a simple slice calls a module
    signature = inspect.signature(call.module.forward)
    bound = signature.bind(*args, **kwargs).arguments
    kinds = {signature.parameters[name].kind for name in bound}
    named = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    return dict(bound) if kinds <= named else None
