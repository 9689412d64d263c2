"""The tracer itself: a mode that sees every torch call of this thread and writes down what it read and wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from leadline.records import Phase, SourceKind
from leadline.tracer import stats
from leadline.tracer.calls import CallStack, Plan, plan_for, renormalised_by, spelled_call, written_by
from leadline.tracer.gradients import Gradients
from leadline.tracer.names import ModelIndex
from leadline.tracer.restore import Guard
from leadline.tracer.stats import measure_attention
from leadline.tracer.values import Entry, Ledger, describe, tensors_in

MANY_OUTPUTS = (
    16  # ours: an op with more outputs (unbind over time steps) is measured on none of them, and says so
)
_UNWRITTEN = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"})
_SHARED = frozenset(
    {"weight", "matmul", "recurrent", "embedding", "norm", "add", "attention", "activation"}
)  # kinds of which it is asked how alike the samples are


class Unseen(Protocol):
    """Runs and reads tensors that hold no values themselves (fake ones)."""

    def run(
        self,
        call: tuple[Any, tuple[Any, ...], dict[str, Any]],
        read: Sequence[Tensor],
        written: Sequence[Tensor],
    ) -> Any:
        """Make a call; `read` and `written` are the tensors among its arguments. No backward pass will follow."""

    def base(self, tensor: Tensor) -> Tensor | None:
        """The tensor that a view shows a part of; None if it is no view."""

    def reveal(self, tensor: Tensor) -> stats.RawStats | None:
        """Statistics of a tensor, where these are known from elsewhere."""


OnError = Callable[[Exception], None]
"""Told of an error of our own, which then ends the recording and not the pass."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class Step:
    """An op under construction."""

    plan: Plan
    module: str
    call: int
    phase: Phase
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


class Given(NamedTuple):
    """What an op was given: the tensors, the values that these are, and which of the tensors it writes into."""

    tensors: list[Tensor]
    read: list[int]
    written: list[Tensor]
    touched: list[Tensor]
    """Those, or what it rescales on the side."""


class Recorder(TorchFunctionMode):
    """Records ops while it is entered. Keeps no tensor of the pass: only shapes, numbers and identities."""

    def __init__(
        self,
        model_index: ModelIndex,
        guard: Guard,
        unseen: Unseen | None = None,
        forgive: OnError | None = None,
        *,
        unmeasured: str = "",
    ) -> None:
        """`unmeasured`: why nothing is measured, if only the structure is wanted."""
        super().__init__()
        self.ledger = Ledger()
        self.steps: list[Step] = []
        self.calls = CallStack(model_index)
        self.gradients = Gradients(self.ledger, self._safely)
        self.leaves: list[Tensor] = []
        """Trainable tensors that are neither the model's nor the batch's: a learnable temperature in the loss."""
        self.inputs: list[Tensor] = []
        """Trainable tensors of the batch."""
        self.given: dict[int, tuple[int | None, ...]] = {}
        self.made: dict[int, tuple[int | None, ...]] = {}
        """What the first call of a module was given, and what it returned; by the module's identity."""
        self.phase: Phase = "forward"
        self.backward = False
        self.aside = False
        """What runs is not the model's: it is not written down."""
        self.gathered: dict[int, str] = {}
        """Names of parameters that are whole for the pass only, by identity; the model itself shows shards of them."""
        self.wholes: dict[str, stats.RawStats] = {}
        """What was measured of these, as far as the pass read them."""
        self.seconds = 0.0
        """What recording took so far, inside of somebody's training; nobody asks elsewhere."""
        self._model_index = model_index
        self._guard = guard
        self._unseen = unseen
        self._forgive = forgive
        self._broken = False
        self._unmeasured = unmeasured
        self._plans: dict[Any, Plan | None] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        plan = None if self._broken or self.aside else self._safely(self._plan, func)
        if plan is None:
            return func(*args, **kwargs)
        if plan.twin is not None:
            with self:
                return plan.twin(*args, **kwargs)
        if self.backward:
            result = func(*args, **kwargs)
            self._safely(self._again, plan, args, kwargs, result)
            return result
        given = self._safely(self._before, plan, args, kwargs)
        if self._unseen is None or given is None:
            result = func(*args, **kwargs)
        else:
            result = self._unseen.run((func, args, kwargs), given.tensors, given.touched)
        if given is not None:
            self._safely(self._after, plan, args, kwargs, (given, result))
        return result

    def _before(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given:
        """What the op is about to read and to write."""
        written = written_by(plan, args, kwargs)
        tensors = tensors_in((args, kwargs) if kwargs else args)
        if touched := written or renormalised_by(plan, args, kwargs):
            self._guard.before_write(touched)
        return Given(tensors, [self._read(tensor) for tensor in tensors], written, touched)

    def _after(
        self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], run: tuple[Given, Any]
    ) -> None:
        """Write the op down."""
        (tensors, read, written, _), result = run
        known = {id(tensor): value for tensor, value in zip(tensors, read, strict=True)}
        if step := self._note(plan, read, _made(result, tensors, written), written):
            step.args, step.kwargs = spelled_call(args, kwargs, known)
            if plan.kind == "attention" and not self._unmeasured:
                self.ledger.entries[step.outputs[0]].attended = measure_attention(*args, **kwargs)

    def _again(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """An op that runs in the backward pass: a checkpoint that is computed again."""
        given = tensors_in((args, kwargs) if kwargs else args)
        self.gradients.recomputed(plan.callable, _made(result, given, written_by(plan, args, kwargs)))

    def _safely(self, part: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Run a part of our own. Beside somebody's training its errors are forgiven, and nothing more is recorded."""
        if self._forgive is None:
            return part(*args, **kwargs)
        start = perf_counter()
        try:
            return part(*args, **kwargs)
        except Exception as error:
            self._broken = True
            self._forgive(error)
            return None
        finally:
            self.seconds += perf_counter() - start

    def name_source(self, tree: Any, name: str, kind: SourceKind) -> None:
        """Give the tensors of a batch their names, before the model reads them."""
        for label, part in _parts(tree, name):
            fresh = [tensor for tensor in tensors_in(part) if self._is_fresh(tensor)]
            for index, tensor in enumerate(fresh):
                entry = self._observe(tensor, describe(tensor))
                entry.source = kind
                entry.name = label if len(fresh) == 1 else f"{label}[{index}]"
                self._guard.watch(tensor)
                if tensor.requires_grad and tensor.is_leaf:
                    self.inputs.append(tensor)
                self.ledger.enter(tensor, entry)

    def entered(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """A module was called."""
        if not self.backward and not self._broken and self.calls.counts[id(module)] == 1:
            self._safely(self._given, module, args)

    def returned(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """A module returned."""
        if not self.backward and not self._broken:
            self._safely(self._returned, module, (args, kwargs), output)

    def _given(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.given[id(module)] = tuple(self.ledger.find(tensor) for tensor in tensors_in(args))

    def _returned(self, module: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]], output: Any) -> None:
        """Outputs that no seen op made (TorchScript, foreign kernels) are put down to the module."""
        made = tensors_in(output)
        with torch._C.DisableTorchFunction():  # the mode is active in hooks: our calls are not the model's
            unseen = [each for each in made if self.ledger.find(each) is None and each.grad_fn]
            if unseen:
                name = type(module).__name__
                read = [self._read(tensor) for tensor in tensors_in(call)]
                self._note(Plan(name=name, callable=name), read, unseen, ())
        if self.calls.counts[id(module)] == 1:
            self.made[id(module)] = tuple(self.ledger.find(tensor) for tensor in made)

    def handed_on(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> None:
        """While nobody looked, some of these tensors became views or casts of themselves; a view is the same value."""
        if not self._broken:
            self._safely(self._handed_on, before, after)

    def _handed_on(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> None:
        with torch._C.DisableTorchFunction():
            for old, new in zip(before, after, strict=False):
                cast = None if old.dtype == new.dtype else self._plan(Tensor.to)
                if cast is not None:
                    self._note(cast, [self._read(old)], [new], ())
                elif old is not new:
                    self.ledger.alias(new, self._read(old))

    def value_of(self, tensor: Tensor) -> int:
        """The id of the value this tensor is, and a last chance to wait for its gradient."""
        return self._read(tensor)

    def _plan(self, func: Any) -> Plan | None:
        try:
            return self._plans[func]
        except KeyError:
            plan = self._plans[func] = plan_for(func)
            return plan

    def _read(self, tensor: Tensor) -> int:
        value = self.ledger.find(tensor)
        if value is None:
            return self._adopt(tensor) if tensor.grad_fn else self.ledger.enter(tensor, self._source(tensor))
        self._await(tensor, value)
        return value

    def _source(self, tensor: Tensor) -> Entry:
        """A tensor that no op of the pass wrote: the model's own, or a constant from anywhere."""
        entry = describe(tensor)
        entry.source = "constant"
        if (parameter := self._model_index.parameters.get(id(tensor))) is not None:
            entry.source, entry.name = "parameter", parameter.names[0]
        elif (buffer := self._model_index.buffers.get(id(tensor))) is not None:
            entry.source, entry.name = "buffer", buffer.names[0]
        elif (whole := self.gathered.get(id(tensor))) is not None:
            entry.source, entry.name = "parameter", whole
            self.wholes[whole] = stats.measure_norm(tensor)
        elif tensor.requires_grad:
            self.leaves.append(tensor)
        return entry if entry.source == "parameter" else self._observe(tensor, entry)

    def _adopt(self, tensor: Tensor) -> int:
        """A tensor that no seen call made, but that autograd knows: an op of its own, between the values around it."""
        name = tensor.grad_fn.name().removesuffix("Backward") if tensor.grad_fn else "unseen"
        self._note(Plan(name=name, callable=name), self.gradients.behind(tensor, self._read), [tensor], ())
        return len(self.ledger.entries) - 1

    def _is_fresh(self, tensor: Tensor) -> bool:
        return self.ledger.find(tensor) is None and id(tensor) not in self._model_index.parameters

    def _note(
        self, plan: Plan, read: list[int], made: Sequence[Tensor], written: Sequence[Tensor]
    ) -> Step | None:
        """Write down one op. An op that made nothing new (a number, a shape, its own argument) is not one."""
        if not made:
            return None
        index = len(self.steps)
        crowd = f"one of more than {MANY_OUTPUTS} outputs" if len(made) > MANY_OUTPUTS else ""
        if plan.name in _UNWRITTEN:
            crowd = "memory that nothing was written to yet"
        values = [self.ledger.enter(tensor, self._entry(plan, tensor, index, read, crowd)) for tensor in made]
        for base in (self._base(tensor) for tensor in written):
            if base is not None:
                read.append(self._read(base))
                entry = describe(base)
                entry.op, entry.unobserved = index, "changed in place through a view"
                values.append(self.ledger.enter(base, entry))
        module, call = self.calls.here
        step = Step(plan, module, call, self.phase, tuple(read), tuple(values))
        self.steps.append(step)
        for tensor, value in zip(made, values, strict=False):
            self._await(tensor, value)
        return step

    def _await(self, tensor: Tensor, value: int) -> None:
        if tensor.requires_grad and not self._unmeasured and not self.ledger.entries[value].moved:
            self.gradients.wait(tensor, value)

    def _base(self, tensor: Tensor) -> Tensor | None:
        """The tensor that is written when this view is; none if the pass cannot have it in its hands.

        A kernel may return a view of what it made (`linear` of a batch of sequences does): nobody reads the rest.
        """
        if self._unseen is not None:
            base = self._unseen.base(tensor)
            return None if base is None or self.ledger.find(base) is None else base
        base = tensor._base if tensor._is_view() else None
        hidden = base is not None and base.grad_fn is not None and self.ledger.find(base) is None
        return None if hidden else base

    def _entry(self, plan: Plan, tensor: Tensor, index: int, read: Sequence[int], unobserved: str) -> Entry:
        entry = describe(tensor)
        entry.op, entry.unobserved = index, unobserved
        entry.unit_dim = self._unit_dim(plan, tensor, read)
        if plan.layout and read and self._is_seen(read[0]):
            entry.moved = True
            return entry
        if unobserved:
            return entry
        self._observe(tensor, entry)
        if entry.forward is not None and tensor.dim() > 1 and tensor.numel() and self._unseen is None:
            if plan.kind == "activation":
                entry.units = stats.measure_units(tensor, entry.unit_dim, plan.bounds, entry.forward)
            if plan.kind in _SHARED:
                entry.common = stats.measure_common(tensor, entry.unit_dim)
        return entry

    def _is_seen(self, value: int) -> bool:
        entry = self.ledger.entries[value]
        return entry.moved or entry.forward is not None or bool(entry.unobserved)

    def _observe(self, tensor: Tensor, entry: Entry) -> Entry:
        if tensor.is_floating_point() or tensor.is_complex():
            entry.unobserved = self._unmeasured or stats.unobservable(tensor)
            if not entry.unobserved:
                entry.forward = stats.measure(tensor)
            elif self._unseen is not None and (known := self._unseen.reveal(tensor)) is not None:
                entry.forward, entry.unobserved = known, ""
        return entry

    def _unit_dim(self, plan: Plan, tensor: Tensor, read: Sequence[int]) -> int:
        """Convolutional layers keep their features in dimension 1, all others in the last; later ops inherit that."""
        if tensor.dim() <= 2:
            return -1
        if plan.channels_first:
            return 1
        first = self.ledger.entries[read[0]] if read else None
        return first.unit_dim if first is not None and len(first.shape) == tensor.dim() else -1


def _made(result: Any, given: Sequence[Tensor], written: list[Tensor]) -> list[Tensor]:
    """The tensors a call brought about: what it wrote in place, or what it returned and had not been given."""
    if written:
        return written
    return [tensor for tensor in tensors_in(result) if all(tensor is not other for other in given)]


def _parts(tree: Any, name: str) -> list[tuple[str, Any]]:
    """Keyword arguments go by their keys, positional ones by their number."""
    if isinstance(tree, Mapping):
        return [(str(key), part) for key, part in tree.items()]
    if isinstance(tree, tuple) and len(tree) > 1:
        return [(f"{name}[{index}]", part) for index, part in enumerate(tree)]
    return [(name, tree)]
