"""The Case of a step: from the tape of a real step to its model, its batch, and its loss as a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from leadline.case import Case
from leadline.errors import LeadlineError
from leadline.joint_optimizer import Optimizers
from leadline.runner.tape import FORGOTTEN, Autocast, Made, Root, TapeCall, TapeState, settings_of
from leadline.tracer.inputs import loss_of_output
from leadline.tracer.values import tensors_in

# Heuristic: a step with more module calls, such as a rollout or a cell at every time step, takes too long to repeat.
MAX_MODULE_CALLS = 256

UNSEEN_LOSS = (
    "the loss was computed by code that Leadline did not see: before the first call of a module, in a custom "
    "autograd.Function outside modules, or in a compiled function"
)
UNSEEN_VALUE = (
    "the loss depends on a tensor that was computed before the first call of a module, in a custom autograd.Function "
    "outside modules, or in a compiled function"
)
CHANGED_INPUT = "a tensor of the batch was changed in place after the model had read it"


class NotAttributableError(LeadlineError):
    """Model, batch and loss of a step cannot be told apart; the text is the reason."""


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
    slices = [_slice(state, [root]) for root in state.roots]
    if len(slices) > 1 and _are_alike(state.roots, slices):
        return _accumulated(state, slices, optimizers)
    whole = slices[0] if len(slices) == 1 else _slice(state, state.roots)
    return _taped_step(state, whole, _as_case(whole, optimizers))


@dataclass(frozen=True, slots=True)
class Outside:
    """A reference to a tensor of the batch: number `index` among those that a slice reads."""

    index: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RepeatedCall:
    """A call of the tape without the tensors of the real pass: `Made` and `Outside` stand for them."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    written: tuple[int, ...]
    autocast: tuple[Autocast, ...]
    has_grad: bool
    name: str
    owner: nn.Module | None
    references: tuple[Made, ...]
    reads: tuple[int, ...]
    """Indexes of the tensors of the batch that it reads."""

    @property
    def module(self) -> nn.Module | None:
        return self.function if isinstance(self.function, nn.Module) else None

    def __deepcopy__(self, memo: dict[int, Any]) -> RepeatedCall:
        """Copy modules and parameters; a torch function is shared, because some of them cannot be copied."""
        changes: dict[str, Any] = {
            "args": deepcopy(self.args, memo),
            "kwargs": deepcopy(self.kwargs, memo),
            "owner": None,
        }
        if self.module is not None:
            changes["function"] = deepcopy(self.module, memo)
        return replace(self, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The calls that some losses depend on, split into those of the model and those of the loss."""

    calls: dict[int, RepeatedCall]
    model: tuple[int, ...]
    """Calls of trained modules, and what their arguments are computed from."""
    trained: tuple[int, ...]
    """Those of the model's calls that call trained modules."""
    loss: tuple[int, ...]
    roots: tuple[Made, ...]
    has_own_loss: bool
    """Whether the only module called returns the only root, in the form in which a Case needs no loss function."""

    @property
    def is_simple(self) -> bool:
        """Whether the model is one call of one module on the batch."""
        if len(self.model) != 1 or len(self.trained) != 1:
            return False
        call = self.calls[self.model[0]]
        return not call.autocast and not call.written and not call.references

    def reads(self, numbers: Iterable[int]) -> list[int]:
        """The indexes of the tensors of the batch that these calls read, each once."""
        return list(dict.fromkeys(index for number in numbers for index in self.calls[number].reads))

    def crossing(self) -> list[Made]:
        """The values of the model that the loss reads."""
        model = set(self.model)
        refs = [made for number in self.loss for made in self.calls[number].references]
        return list(dict.fromkeys(made for made in (*refs, *self.roots) if made.call in model))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicedStep:
    """A slice and the batch of the real pass."""

    part: Slice
    batch: list[Tensor]


def _is_trained(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) or tensor.requires_grad


def _slice(state: TapeState, roots: Sequence[Root]) -> SlicedStep:
    """The calls that the roots depend on. Raises NotAttributableError where the tape does not lead to the batch."""
    ends = [_end(root) for root in roots]
    needed = _needed(state.calls, ends)
    calls = {number: state.calls[number] for number in sorted(needed)}
    _check(calls)
    batch: dict[int, Tensor] = {}
    repeated = {number: _repeated(call, state, needed, batch) for number, call in calls.items()}
    trained = tuple(number for number, call in calls.items() if call.is_trainable)
    model = _ancestors(repeated, trained) if trained else set(calls)
    part = Slice(
        calls=repeated,
        model=tuple(number for number in calls if number in model),
        trained=trained,
        loss=tuple(number for number in calls if number not in model),
        roots=tuple(ends),
        has_own_loss=len(ends) == 1 and _returns_loss(calls.get(ends[0].call), ends[0]),
    )
    return SlicedStep(part=part, batch=list(batch.values()))


def _repeated(
    call: TapeCall, state: TapeState, needed: Collection[int], batch: dict[int, Tensor]
) -> RepeatedCall:
    """The call with references instead of tensors; tensors of the batch are added to `batch`, by id."""
    references: list[Made] = []
    reads: list[int] = []

    def refer(leaf: Any) -> Any:
        if isinstance(leaf, Made):
            if leaf.call in needed:
                references.append(leaf)
                return leaf
            leaf = state.calls[leaf.call].outputs[leaf.leaf]
        if not isinstance(leaf, Tensor) or _is_trained(leaf):
            return leaf
        batch.setdefault(id(leaf), leaf)
        reads.append(list(batch).index(id(leaf)))
        return Outside(reads[-1])

    args, kwargs = tree_map(refer, (call.args, call.kwargs))
    return RepeatedCall(
        function=call.function,
        args=args,
        kwargs=kwargs,
        written=call.written,
        autocast=call.autocast,
        has_grad=call.has_grad,
        name=call.name,
        owner=call.owner,
        references=tuple(references),
        reads=tuple(reads),
    )


def _returns_loss(call: TapeCall | None, root: Made) -> bool:
    if call is None or not call.is_trainable:
        return False
    return loss_of_output(call.output) is call.outputs[root.leaf]


def _end(root: Root) -> Made:
    if root.made is None:
        raise NotAttributableError(UNSEEN_LOSS)
    if root.tensor.numel() != 1:
        shape = tuple(root.tensor.shape)
        raise NotAttributableError(
            f"backward was called on a tensor of shape {shape}, so there is no scalar loss"
        )
    return root.made


def _needed(calls: Sequence[TapeCall], ends: Sequence[Made]) -> set[int]:
    """The calls to repeat. What other calls returned is part of the batch, as if the program had loaded it.

    Those are calls without a gradient that draw samples, change a tensor in place, call a module, were made before the
    first module was, or start from modules that the gradient does not reach (a GAN's images without their generator).
    """
    differentiated = _ancestors(calls, [made.call for made in ends], only_with_grad=True)
    trained = {number for number in differentiated if calls[number].is_trainable}
    first = min(trained, default=0)

    def is_constant(number: int) -> bool:
        call = calls[number]
        if call.requires_grad and number in differentiated:
            return False
        if call.is_random or number < first or call.module is not None:
            return True
        origin = _ancestors(calls, [number])
        modules = {each for each in origin if calls[each].is_trainable}
        return not modules <= trained or bool(call.written and not modules)

    return _ancestors(calls, [made.call for made in ends], stop=is_constant)


def _ancestors(
    calls: Sequence[TapeCall] | Mapping[int, RepeatedCall],
    ends: Iterable[int],
    *,
    only_with_grad: bool = False,
    stop: Callable[[int], bool] | None = None,
) -> set[int]:
    """The calls that these depend on, and they themselves; not through those at which to stop."""
    found: set[int] = set()
    todo = list(ends)
    while todo:
        number = todo.pop()
        call = calls[number]
        if number in found or (stop is not None and stop(number)):
            continue
        if isinstance(call, TapeCall):
            if call is FORGOTTEN:
                raise NotAttributableError(UNSEEN_VALUE)
            if only_with_grad and not call.requires_grad:
                continue
        found.add(number)
        todo += [made.call for made in call.references]
    return found


def _check(calls: Mapping[int, TapeCall]) -> None:
    modules = [call for call in calls.values() if call.module is not None]
    if len(modules) > MAX_MODULE_CALLS:
        raise NotAttributableError(f"the step calls modules {len(modules)} times, as a rollout does")
    for call in calls.values():
        for tensor, version in call.versions:
            if tensor.grad_fn is not None:
                raise NotAttributableError(UNSEEN_VALUE)
            if not _is_trained(tensor) and tensor._version != version:
                raise NotAttributableError(CHANGED_INPUT)


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


# Repeating the calls.


def _repeat(
    part: Slice, numbers: Iterable[int], values: dict[Made, Tensor], batch: Mapping[int, Tensor]
) -> None:
    """Make these calls again and put what they return into `values`; `batch` holds tensors of a batch by index."""

    def fill(leaf: Any) -> Any:
        if isinstance(leaf, Made):
            return values[leaf]
        return batch[leaf.index] if isinstance(leaf, Outside) else leaf

    for number in numbers:
        call = part.calls[number]
        args, kwargs = tree_map(fill, (call.args, call.kwargs))
        changed: list[Tensor] = []
        if call.written:
            args, kwargs, changed = _copy_written(call, args, kwargs)
        with settings_of(call.autocast, has_grad=call.has_grad):
            output = call.function(*args, **kwargs)
        outputs = tensors_in(output)
        outputs += [each for each in changed if not any(each is other for other in outputs)]
        values.update({Made(number, leaf): tensor for leaf, tensor in enumerate(outputs)})


def _copy_written(
    call: RepeatedCall, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], list[Tensor]]:
    """The arguments with copies of those of the batch that the call changes, and all those that it changes."""
    references = [
        leaf for leaf in tree_leaves((call.args, call.kwargs)) if isinstance(leaf, Made | Outside | Tensor)
    ]
    leaves, form = tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    for position in call.written:
        if not isinstance(references[position], Made):
            leaves[places[position]] = leaves[places[position]].clone()
    args, kwargs = tree_unflatten(leaves, form)
    return args, kwargs, [leaves[places[position]] for position in call.written]


class ReplayedModel(nn.Module):
    """The modules of a step under the names that the program gives them; a call repeats what the program does."""

    def __init__(self, part: Slice) -> None:
        super().__init__()
        self._part = part
        self._inputs = part.reads(part.model)
        self._outputs = part.crossing()
        _add_modules(self, part, part.model)
        self._add_loose_parameters()
        self.training = any(each.training for each in self.children())

    def _add_loose_parameters(self) -> None:
        """Add parameters that the program uses outside every module, such as a position embedding or a temperature."""
        calls = self._part.calls.values()
        known = {id(each) for each in self.parameters()}
        names = {
            id(parameter): name
            for owner in {id(call.owner): call.owner for call in calls if call.owner is not None}.values()
            for name, parameter in owner.named_parameters()
        }
        for leaf in (leaf for call in calls for leaf in tree_leaves((call.args, call.kwargs))):
            if isinstance(leaf, Tensor) and leaf.requires_grad and id(leaf) not in known:
                known.add(id(leaf))
                name = names.get(id(leaf), "parameter").replace(".", "_")
                self._parameters[_free_name(self, name)] = leaf  # type: ignore[assignment]  # also plain tensors

    def forward(self, *batch: Tensor) -> Any:
        values: dict[Made, Tensor] = {}
        _repeat(self._part, self._part.model, values, dict(zip(self._inputs, batch, strict=True)))
        outputs = tuple(values[made] for made in self._outputs)
        return outputs[0] if len(outputs) == 1 else outputs


def _add_modules(owner: nn.Module, part: Slice, numbers: Iterable[int]) -> None:
    for number in numbers:
        call = part.calls[number]
        if call.module is not None and not any(call.module is each for each in owner.children()):
            owner.add_module(_free_name(owner, call.name), call.module)


def _free_name(owner: nn.Module, name: str) -> str:
    """The name, or the name with the first number that makes it unique."""
    names = (name, *(f"{name}_{number}" for number in range(2, MAX_MODULE_CALLS + 2)))
    return next(each for each in names if not hasattr(owner, each))


def replayed_model(part: Slice) -> ReplayedModel:
    """A model whose class is called like the modules that it repeats, because reports show the class."""
    called = {id(part.calls[number].module): part.calls[number] for number in part.trained}
    names = dict.fromkeys(call.name for call in called.values())
    title = " + ".join(names) if len(called) != 1 else type(next(iter(called.values())).module).__name__
    kind = type(title or "program", (ReplayedModel,), {"__module__": __name__})
    return kind(part)


class ReplayedLoss(nn.Module):
    """The loss of the program as a function of the model's output: what the program computes from it, made again.

    Loss modules are its children, so that their state is restored like the model's.
    """

    def __init__(self, part: Slice, factor: int, *, is_simple: bool) -> None:
        super().__init__()
        self._part, self._factor, self._is_simple = part, factor, is_simple
        self._targets = part.reads(part.loss)
        _add_modules(self, part, part.loss)

    def forward(self, output: Any, targets: Any = None) -> Tensor:
        part = self._part
        given = [targets] if isinstance(targets, Tensor) else list(targets or ())
        outputs = tensors_in(output)
        if self._is_simple:
            values = {Made(part.model[0], leaf): tensor for leaf, tensor in enumerate(outputs)}
        else:
            values = dict(zip(part.crossing(), outputs, strict=True))
        _repeat(part, part.loss, values, dict(zip(self._targets, given, strict=True)))
        losses = [values[made].reshape(()) for made in part.roots]
        total = losses[0] if len(losses) == 1 else torch.stack([each.float() for each in losses]).sum()
        return total * self._factor if self._factor != 1 else total
