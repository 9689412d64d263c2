"""The part of a tape that the loss of a step depends on, split into the calls of the model and those of the loss."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from leadline.errors import LeadlineError
from leadline.runner.tape import FORGOTTEN, Autocast, Made, Root, TapeCall, TapeState
from leadline.tracer.inputs import loss_of_output

# Heuristic: a step with more module calls, such as a rollout or a cell at every time step, takes too long to repeat.
MAX_MODULE_CALLS = 256

UNSEEN_LOSS = (
    "the loss was computed by code that Leadline did not see: before the first call of a module, in a custom "
    "autograd.Function outside modules, or in a compiled function. Compute it in a module or from its outputs"
)
UNSEEN_VALUE = (
    "the loss depends on a tensor that was computed before the first call of a module, in a custom autograd.Function "
    "outside modules, or in a compiled function"
)
CHANGED_INPUT = (
    "a tensor of the batch was changed in place after the model had read it. Change a copy of it instead"
)


class NotAttributableError(LeadlineError):
    """Model, batch and loss of a step cannot be told apart; the text is the reason."""


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
    has_loose_parameters: bool
    """Whether a call uses a trained tensor that is in none of the modules."""

    @property
    def is_simple(self) -> bool:
        """Whether the model is one call of one module on the batch."""
        if len(self.model) != 1 or len(self.trained) != 1:
            return False
        call = self.calls[self.model[0]]
        is_plain = not call.autocast and not call.written and not call.references
        return is_plain and not self.has_loose_parameters

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


def slice_of(state: TapeState, roots: Sequence[Root]) -> SlicedStep:
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
        has_loose_parameters=_has_loose_parameters(calls.values()),
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


def _has_loose_parameters(calls: Collection[TapeCall]) -> bool:
    modules = [call.module for call in calls if call.module is not None]
    known = {id(each) for module in modules for each in module.parameters()}
    return any(each.requires_grad and id(each) not in known for call in calls for each, _ in call.versions)


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
        raise NotAttributableError(
            f"the step calls modules {len(modules)} times, as a rollout does, and a check repeats the step. "
            "Check a factory with one batch instead: `leadline check file.py:factory`"
        )
    for call in calls.values():
        if not call.has_grad and any(each.grad_fn is not None for each in call.outputs):
            raise NotAttributableError(UNSEEN_VALUE)  # made inside a custom autograd.Function
        for tensor, version in call.versions:
            if tensor.grad_fn is not None:
                raise NotAttributableError(UNSEEN_VALUE)
            if not _is_trained(tensor) and tensor._version != version:
                raise NotAttributableError(CHANGED_INPUT)
