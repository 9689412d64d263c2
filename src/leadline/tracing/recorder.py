"""The tracer itself: a mode that sees every torch call of this thread and writes down what it read and wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from leadline import ops, stats
from leadline.records import Phase, SourceKind
from leadline.tracing.calls import CallStack
from leadline.tracing.census import Census
from leadline.tracing.composite import inside
from leadline.tracing.custody import WriteGuard
from leadline.tracing.gradients import Gradients
from leadline.tracing.ledger import Entry, Ledger, describe, tensors_in

MANY_OUTPUTS = 16  # ours: an op with more outputs (unbind over time steps) is measured on none of them, and says so
_COMPOSITES = ("torch.nn.functional", "torch.functional")  # here Python functions are made of announced torch calls
_CHANNELS_FIRST = ("conv", "batch_norm", "group_norm", "instance_norm", "pool")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do when a given torch callable is called; worked out once for each."""

    name: str
    callable: str
    kind: str | None
    layout: bool
    writes: bool
    channels_first: bool = False
    bounds: tuple[float, float] | None = None
    twin: Callable[..., Any] | None = None


@dataclass(slots=True)
class Step:
    """An op under construction."""

    plan: Plan
    module: str
    call: int
    phase: Phase
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Recorder(TorchFunctionMode):
    """Records ops while it is entered. Keeps no tensor of the pass: only shapes, numbers and identities."""

    def __init__(self, census: Census, guard: WriteGuard) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.steps: list[Step] = []
        self.calls = CallStack(census)
        self.gradients = Gradients(self.ledger)
        self.leaves: list[Tensor] = []  # trainable tensors that are not the model's
        self.phase: Phase = "forward"
        self.backward = False
        self._census = census
        self._guard = guard
        self._plans: dict[Any, Plan | None] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        plan = self._plan(func)
        if plan is None:
            return func(*args, **kwargs)
        if plan.twin is not None:
            with self:
                return plan.twin(*args, **kwargs)
        written = _written(plan, args, kwargs)
        if written is not None and not self.backward:
            self._guard.before_write(written)
        read = () if self.backward else self._read(args, kwargs)
        result = func(*args, **kwargs)
        self._note(plan, read, written, result)
        return result

    def name_source(self, tree: Any, name: str, kind: SourceKind) -> None:
        """Give the tensors of a batch their names, before the model reads them."""
        for label, part in _parts(tree, name):
            tensors = tensors_in(part)
            for index, tensor in enumerate(tensors):
                if self.ledger.find(tensor) is None and id(tensor) not in self._census.parameters:
                    self._guard.watch(tensor)
                    if tensor.is_leaf and tensor.requires_grad:
                        self.leaves.append(tensor)
                    entry = self._observe(tensor, describe(tensor))
                    entry.source = kind
                    entry.name = label if len(tensors) == 1 else f"{label}[{index}]"
                    self.ledger.enter(tensor, entry)

    def returned(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """A module returned: outputs that no seen op made (TorchScript, foreign kernels) are put down to it."""
        if self.backward:
            return
        with torch._C.DisableTorchFunction():  # a hook runs with the mode active: what we do here is not the model's doing
            unseen = [tensor for tensor in tensors_in(output) if self._made_elsewhere(tensor)]
            if unseen:
                name = type(module).__name__
                plan = Plan(name=name, callable=name, kind=None, layout=False, writes=False)
                self._note(plan, self._read(args, kwargs), None, unseen)

    def value_of(self, tensor: Tensor) -> int:
        """The id of the value this tensor is, and a last chance to wait for its gradient."""
        return self._read((tensor,), {})[0]

    def _plan(self, func: Any) -> Plan | None:
        try:
            return self._plans[func]
        except KeyError:
            plan = self._plans[func] = _plan_for(func)
            return plan

    def _read(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[int, ...]:
        return tuple([self._reading(tensor) for tensor in tensors_in((args, kwargs) if kwargs else args)])

    def _reading(self, tensor: Tensor) -> int:
        value = self.ledger.find(tensor)
        if value is None:
            value = self.ledger.enter(tensor, self._source(tensor))
        elif tensor.requires_grad and not self.ledger.entries[value].moved:
            self.gradients.wait(tensor, value)
        return value

    def _source(self, tensor: Tensor) -> Entry:
        entry = describe(tensor)
        for kind, found in (("parameter", self._census.parameters), ("buffer", self._census.buffers)):
            if id(tensor) in found:
                entry.source = "parameter" if kind == "parameter" else "buffer"
                entry.name = found[id(tensor)].names[0]
                return entry
        entry.source = "constant"
        if tensor.is_leaf and tensor.requires_grad:
            self.leaves.append(tensor)
        elif tensor.grad_fn is not None:
            entry.unobserved = f"made outside the traced calls ({tensor.grad_fn.name()})"
        return entry

    def _made_elsewhere(self, tensor: Tensor) -> bool:
        return self.ledger.find(tensor) is None and tensor.grad_fn is not None

    def _note(self, plan: Plan, read: tuple[int, ...], written: Tensor | None, result: Any) -> None:
        outputs = tensors_in(result) if written is None else [written]
        known = [] if written is not None else [tensor for tensor in outputs if self.ledger.find(tensor) in read]
        outputs = [tensor for tensor in outputs if all(tensor is not other for other in known)]
        if not outputs:
            return  # a number, a shape, or an argument handed through
        if self.backward:
            self.gradients.recomputed(plan.callable, outputs)
            return
        index = len(self.steps)
        crowded = len(outputs) > MANY_OUTPUTS
        values = [self.ledger.enter(tensor, self._written_entry(plan, tensor, index, read, crowded)) for tensor in outputs]
        if written is not None and written._is_view() and written._base is not None:
            base = written._base
            before = self._reading(base)
            read = (*read, before)
            entry = describe(base)
            entry.op, entry.unobserved = index, "changed in place through a view"
            values.append(self.ledger.enter(base, entry))
        module, call = self.calls.here
        self.steps.append(Step(plan, module, call, self.phase, read, tuple(values)))
        for tensor, value in zip(outputs, values, strict=False):
            if tensor.requires_grad and not plan.layout:
                self.gradients.wait(tensor, value)

    def _written_entry(self, plan: Plan, tensor: Tensor, index: int, read: tuple[int, ...], crowded: bool) -> Entry:
        entry = describe(tensor)
        entry.op = index
        entry.unit_dim = self._unit_dim(plan, tensor, read)
        if plan.layout and read and self._is_seen(read[0]):
            entry.moved = True
            return entry
        if crowded:
            entry.unobserved = f"one of more than {MANY_OUTPUTS} outputs"
            return entry
        self._observe(tensor, entry)
        if plan.kind == "activation" and entry.forward is not None and tensor.dim() > 1 and tensor.numel():
            if plan.bounds is not None or stats.may_have_zeros(entry.forward):
                entry.units = stats.measure_units(tensor, entry.unit_dim, plan.bounds)
            else:
                entry.units = stats.UnitReading(tensor.shape[entry.unit_dim], 0.0, None)
        return entry

    def _is_seen(self, value: int) -> bool:
        entry = self.ledger.entries[value]
        return entry.moved or entry.forward is not None or bool(entry.unobserved)

    def _observe(self, tensor: Tensor, entry: Entry) -> Entry:
        if tensor.is_floating_point() or tensor.is_complex():
            entry.unobserved = stats.unobservable(tensor)
            if not entry.unobserved:
                entry.forward = stats.measure(tensor)
        return entry

    def _unit_dim(self, plan: Plan, tensor: Tensor, read: tuple[int, ...]) -> int:
        """Convolutional layers keep their features in dimension 1, all others in the last; later ops inherit that."""
        if tensor.dim() <= 2:
            return -1
        if plan.channels_first:
            return 1
        first = self.ledger.entries[read[0]] if read else None
        return first.unit_dim if first is not None and len(first.shape) == tensor.dim() else -1


def _parts(tree: Any, name: str) -> list[tuple[str, Any]]:
    """Keyword arguments go by their keys, positional ones by their number."""
    if isinstance(tree, Mapping):
        return [(str(key), part) for key, part in tree.items()]
    if isinstance(tree, tuple) and len(tree) > 1:
        return [(f"{name}[{index}]", part) for index, part in enumerate(tree)]
    return [(name, tree)]


def _plan_for(func: Any) -> Plan | None:
    spelling = getattr(func, "__name__", type(func).__name__)
    if spelling == "__get__":  # a property: some give tensors (.T, .real, .data), most give facts (.shape, .grad_fn)
        spelling = func.__self__.__name__
        if ops.family_of(spelling) is None:
            return None
    name = ops.canonical(spelling)
    family = ops.family_of(name)
    return Plan(
        name=name,
        callable=_callable_name(func, spelling),
        kind=None if family is None else family.kind,
        layout=family is not None and family.layout,
        writes=_writes(spelling),
        channels_first=any(word in name for word in _CHANNELS_FIRST),
        bounds=None if family is None else family.bounds.get(name),
        twin=inside(func) if family is None and getattr(func, "__module__", None) in _COMPOSITES else None,
    )


def _callable_name(func: Any, spelling: str) -> str:
    name = resolve_name(func)
    return name.removesuffix(".__get__") if name else f"{getattr(func, '__module__', None) or 'torch'}.{spelling}"


def _writes(spelling: str) -> bool:
    if spelling.startswith("__"):
        return spelling == "__setitem__" or spelling.strip("_") in ops.IN_PLACE_OPERATORS
    return spelling.endswith("_") and not spelling.endswith("__")


def _written(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The tensor that this call changes in place, if it does."""
    target = kwargs.get("out")
    if target is None and (plan.writes or kwargs.get("inplace") is True) and args:
        target = args[0]
    return target if isinstance(target, Tensor) else None
