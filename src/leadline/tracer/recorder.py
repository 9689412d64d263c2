"""The recorder: a TorchFunctionMode that records every torch call of this thread, with what it read and wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple, Protocol, TypeVar, TypeVarTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from leadline.ops.table import UNINITIALIZED_OPS
from leadline.records import CutKind, GraphExit, Phase, Source, SourceKind
from leadline.records.trace import CHANGED_THROUGH_VIEW
from leadline.tracer import counts, mixing, stats
from leadline.tracer.attention import AttentionBatches, attention_logits, softmax_logits
from leadline.tracer.calls import (
    CallArguments,
    CallStack,
    OpPlan,
    cut_kind,
    plan_for,
    read_arguments,
    tensors_renormalized_by,
    tensors_written_by,
)
from leadline.tracer.gradients import Gradients
from leadline.tracer.inputs import CALLING_CODE, named_tensors
from leadline.tracer.names import ModelIndex
from leadline.tracer.sources import CallSites, repository_root
from leadline.tracer.stats import UnitKind
from leadline.tracer.values import ValueEntry, ValueTable, describe, tensors_in

# Heuristic: an op with more outputs (unbind over time steps) would cost too much; none of its outputs is measured.
MAX_MEASURED_OUTPUTS = 16
_KINDS_WITH_SHARED_MEAN = frozenset(
    {"weight", "matmul", "recurrent", "embedding", "norm", "add", "attention", "activation"}
)


class FakeTensorRunner(Protocol):
    """Makes calls on tensors that hold no values (fake ones) and knows the statistics of some of them."""

    def run(
        self,
        call: tuple[Any, tuple[Any, ...], dict[str, Any]],
        read: Sequence[Tensor],
        written: Sequence[Tensor],
    ) -> Any:
        """Make a call; `read` and `written` are the tensors among its arguments. No backward pass follows."""

    def base(self, tensor: Tensor) -> Tensor | None:
        """Return the tensor that `tensor` is a view of; None if it is not a view."""

    def known_stats(self, tensor: Tensor) -> stats.RawStats | None:
        """Return the statistics of a tensor where they are known without its values; None where they are not."""


OnError = Callable[[Exception], None]
"""Receives an error of Leadline itself, which then ends the recording but not the pass."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(slots=True)
class RecordedOp:
    """One op as it is recorded; `inputs` and `outputs` are value ids."""

    plan: OpPlan
    module: str
    call: int
    phase: Phase
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    source: Source | None = None
    cut: CutKind | None = None


class StartedCall(NamedTuple):
    """A call of which the arguments were read and the result is not there yet."""

    arguments: CallArguments
    written: list[Tensor]
    """The tensors that it changes in place."""


class ErrorBarrier:
    """Runs parts of the recorder. Inside a training loop, an error ends the recording and goes to `on_error`.

    It knows nothing of the recorder: who holds it holds no reference cycle, and a finished recorder is freed at once.
    """

    def __init__(self, on_error: OnError | None) -> None:
        self.is_broken = False
        """Whether an error ended the recording."""
        self.seconds = 0.0
        """Time spent on recording; only counted inside a training loop (with `on_error`)."""
        self._on_error = on_error

    def run(self, part: Callable[[*Ts], T], *args: *Ts) -> T | None:
        if self._on_error is None:
            return part(*args)
        start = perf_counter()
        try:
            return part(*args)
        except Exception as error:
            self.is_broken = True
            self._on_error(error)
            return None
        finally:
            self.seconds += perf_counter() - start


class Recorder(TorchFunctionMode):
    """Records ops while it is active. It keeps no tensor of the pass, only shapes, numbers and ids."""

    def __init__(
        self,
        model_index: ModelIndex,
        runner: FakeTensorRunner | None = None,
        on_error: OnError | None = None,
        *,
        unmeasured: str = "",
    ) -> None:
        """`unmeasured` says why nothing is measured, if only the structure is recorded."""
        super().__init__()
        self.table = ValueTable()
        self.ops: list[RecordedOp] = []
        self.calls = CallStack(model_index, CallSites(repository_root(), CALLING_CODE))
        self.barrier = ErrorBarrier(on_error)
        self.attentions = AttentionBatches()
        self.gradients = Gradients(self.table, self.barrier.run)
        self.exits: list[GraphExit] = []
        """Calls that made Python numbers or NumPy arrays of tensors."""
        self.unregistered: list[Tensor] = []
        """Trainable tensors outside the model and the batch, such as a learnable temperature in the loss."""
        self.trainable_inputs: list[Tensor] = []
        """Tensors of the batch that require a gradient."""
        self.module_inputs: dict[int, tuple[int | None, ...]] = {}
        self.module_outputs: dict[int, tuple[int | None, ...]] = {}
        """Value ids that the first call of each module was given and returned, by the id of the module."""
        self.phase: Phase = "forward"
        self.is_backward = False
        self.is_paused = False
        """While True, calls are not the model's own and are not recorded."""
        self.gathered_names: dict[int, str] = {}
        """Names of parameters that a sharded model gathers for the pass, by the id of the gathered tensor."""
        self.gathered_stats: dict[str, stats.RawStats] = {}
        """Statistics of those gathered parameters that the pass read, by name."""
        self._model_index = model_index
        self._runner = runner
        self.unmeasured = unmeasured
        """Why nothing is measured; "" if everything is."""
        self._plans: dict[Any, OpPlan | None] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.barrier.is_broken or self.is_paused:
            return func(*args, **kwargs)
        plan = self._plans[func] if func in self._plans else self.barrier.run(self._plan, func)
        if plan is None:
            return func(*args, **kwargs)
        if plan.body is not None:
            with self:
                return plan.body(*args, **kwargs)
        if self.is_backward:
            result = func(*args, **kwargs)
            self.barrier.run(self._record_recomputed, plan, args, kwargs, result)
            return result
        started = self.barrier.run(self._before_call, plan, args, kwargs)
        if started is None or self._runner is None:
            result = func(*args, **kwargs)
        else:
            changed = started.written or tensors_renormalized_by(plan, args, kwargs)
            result = self._runner.run((func, args, kwargs), started.arguments.tensors, changed)
        if started is not None:
            self.barrier.run(self._after_call, plan, args, kwargs, (started, result))
        return result

    def _before_call(self, plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StartedCall:
        """Return what the op is about to read and write."""
        written = tensors_written_by(plan, args, kwargs) if kwargs or plan.writes else []
        return StartedCall(read_arguments(args, kwargs, self._read), written)

    def _after_call(
        self, plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], run: tuple[StartedCall, Any]
    ) -> None:
        """Record the op."""
        (arguments, written), result = run
        if plan.probe == "exit" and arguments.values:
            self._note_exit(plan, arguments.values[0])
        outputs = _outputs(result, arguments.tensors, written)
        op = self._record(plan, arguments.values, outputs, written)
        if op is None:
            return
        op.args, op.kwargs = arguments.args, arguments.kwargs
        op.cut = cut_kind(plan, arguments.tensors, outputs, is_in_place=bool(written))
        if plan.probe and not self.unmeasured:
            self._measure_more(plan, (args, kwargs), arguments.tensors, outputs)

    def _note_exit(self, plan: OpPlan, value: int) -> None:
        name = plan.callable.rpartition(".")[2]
        self.exits.append(
            GraphExit(name=name, value=value, module=self.calls.here[0], source=self.calls.source)
        )

    def _measure_more(
        self,
        plan: OpPlan,
        call: tuple[tuple[Any, ...], dict[str, Any]],
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor],
    ) -> None:
        """Measure what the `probe` of the plan says; the op was recorded last."""
        args, kwargs = call
        entry = self.table.entries[self.ops[-1].outputs[0]]
        if plan.probe == "attention":
            self.attentions.add(entry, attention_logits(*args, **kwargs))
        elif plan.probe == "softmax" and _is_over_last(tensors[0], args, kwargs):
            self.attentions.add(entry, stats.attempt(softmax_logits, tensors[0])[0])
        elif plan.probe == "class loss":
            entry.summed_targets = counts.count_targets(*args, **kwargs)
        elif plan.probe == "product":
            product = mixing.find_stream_product(plan.name, args, outputs[0])
            if product is not None:
                entry.mixing, _ = stats.attempt(mixing.measure_mixing, outputs[0], product)
        elif plan.probe == "choice":
            indices = self.table.entries[self.ops[-1].outputs[-1]]
            indices.choices = counts.count_choices(tensors, outputs)

    def _record_recomputed(
        self, plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Pass on an op that runs in the backward pass, because a checkpoint is recomputed."""
        tensors = tensors_in((args, kwargs) if kwargs else args)
        outputs = _outputs(result, tensors, tensors_written_by(plan, args, kwargs))
        self.gradients.op_recomputed(plan.callable, outputs)

    def name_source(self, tree: Any, name: str, kind: SourceKind) -> None:
        """Name the tensors of a batch, before the model reads them."""
        for label, tensor in named_tensors(tree, name):
            if self._is_new(tensor):
                entry = self._observe(tensor, describe(tensor))
                entry.source, entry.name = kind, label
                if tensor.requires_grad and tensor.is_leaf:
                    self.trainable_inputs.append(tensor)
                self.table.add(tensor, entry)

    def module_called(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note what the first call of a module is given."""
        if not self.is_backward and not self.barrier.is_broken and self.calls.counts[id(module)] == 1:
            self.barrier.run(self._note_inputs, module, args)

    def module_returned(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Note what a module returned."""
        if not self.is_backward and not self.barrier.is_broken:
            self.barrier.run(self._note_outputs, module, (args, kwargs), output)

    def _note_inputs(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.module_inputs[id(module)] = tuple([self.table.find(tensor) for tensor in tensors_in(args)])

    def _note_outputs(
        self, module: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]], output: Any
    ) -> None:
        """Note what a module returned, and record the module itself as the op behind what no recorded op made."""
        outputs = tensors_in(output)
        values = [self.table.find(each) for each in outputs]
        if None in values:
            unknown = [each for each, value in zip(outputs, values, strict=True) if value is None]
            self._record_module(module, call, unknown)
            values = [self.table.find(each) for each in outputs]
        if self.calls.counts[id(module)] == 1:
            self.module_outputs[id(module)] = tuple(values)

    def _record_module(
        self, module: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]], outputs: Sequence[Tensor]
    ) -> None:
        """Record a module as an op (TorchScript, custom kernels) if it made some of these tensors."""
        with torch._C.DisableTorchFunction():  # the mode is active in hooks: these calls are not the model's
            made = [each for each in outputs if each.grad_fn]
            if made:
                name = type(module).__name__
                values = [self._read(tensor) for tensor in tensors_in(call)]
                self._record(OpPlan(name=name, callable=name), values, made, ())

    def tensors_replaced(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> None:
        """Note that, while recording was paused, tensors became views or casts of themselves."""
        if not self.barrier.is_broken:
            self.barrier.run(self._note_replaced, before, after)

    def _note_replaced(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> None:
        with torch._C.DisableTorchFunction():
            for old, new in zip(before, after, strict=False):
                cast = None if old.dtype == new.dtype else self._plan(Tensor.to)
                if cast is not None:
                    self._record(cast, [self._read(old)], [new], ())
                elif old is not new:
                    self.table.alias(new, self._read(old))

    def value_of(self, tensor: Tensor) -> int:
        """Return the id of the value that this tensor is, and wait for its gradient."""
        return self._read(tensor)

    def _plan(self, func: Any) -> OpPlan | None:
        try:
            return self._plans[func]
        except KeyError:
            plan = self._plans[func] = plan_for(func)
            return plan

    def _read(self, tensor: Tensor) -> int:
        value = self.table.find(tensor)
        if value is None:
            return self._adopt(tensor) if tensor.grad_fn else self.table.add(tensor, self._source(tensor))
        entry = self.table.entries[value]
        if entry.awaits_gradient:  # when it was written, it had no graph yet: see Gradients.wait
            self.gradients.wait(tensor, value, entry)
        return value

    def _source(self, tensor: Tensor) -> ValueEntry:
        """Return the entry of a tensor that no op of the pass wrote: a parameter, a buffer or a constant."""
        entry = describe(tensor)
        entry.source = "constant"
        if (parameter := self._model_index.parameters.get(id(tensor))) is not None:
            entry.source, entry.name = "parameter", parameter.names[0]
        elif (buffer := self._model_index.buffers.get(id(tensor))) is not None:
            entry.source, entry.name = "buffer", buffer.names[0]
        elif (name := self.gathered_names.get(id(tensor))) is not None:
            entry.source, entry.name = "parameter", name
            self.gathered_stats[name] = stats.measure_norm(tensor)
        elif tensor.requires_grad:
            self.unregistered.append(tensor)
        return entry if entry.source == "parameter" else self._observe(tensor, entry)

    def _adopt(self, tensor: Tensor) -> int:
        """Record an op for a tensor that no recorded call made, between the values that autograd says it depends on."""
        name = tensor.grad_fn.name().removesuffix("Backward") if tensor.grad_fn else "unseen"
        values = self.gradients.find_dependencies(tensor, self._read)
        self._record(OpPlan(name=name, callable=name), values, [tensor], ())
        return len(self.table.entries) - 1

    def _is_new(self, tensor: Tensor) -> bool:
        return self.table.find(tensor) is None and id(tensor) not in self._model_index.parameters

    def _record(
        self, plan: OpPlan, values: list[int], outputs: Sequence[Tensor], written: Sequence[Tensor]
    ) -> RecordedOp | None:
        """Record one op that reads `values`. A call without a new tensor (a number, a shape, its argument) is no op."""
        if not outputs:
            return None
        index = len(self.ops)
        output_values = [self._add_output(plan, tensor, values, len(outputs)) for tensor in outputs]
        for tensor in written:
            base = self._base(tensor)
            if base is not None:
                values.append(self._read(base))
                entry = describe(base)
                entry.op, entry.unobserved = index, CHANGED_THROUGH_VIEW
                entry.awaits_gradient = not self.unmeasured
                output_values.append(self.table.add(base, entry))
        module, call = self.calls.here
        op = RecordedOp(plan, module, call, self.phase, tuple(values), tuple(output_values))
        op.source = self.calls.source
        self.ops.append(op)
        return op

    def _base(self, tensor: Tensor) -> Tensor | None:
        """Return the tensor that is written when this view is written; None if no op of the pass can read it.

        A kernel may return a view of what it made (`linear` does for a batch of sequences): nothing reads the rest.
        """
        if self._runner is not None:
            base = self._runner.base(tensor)
            return None if base is None or self.table.find(base) is None else base
        base = tensor._base if tensor._is_view() else None
        is_hidden = base is not None and base.grad_fn is not None and self.table.find(base) is None
        return None if is_hidden else base

    def _add_output(self, plan: OpPlan, tensor: Tensor, values: Sequence[int], count: int) -> int:
        """Add an output of the op that is being recorded, one of `count`, and measure it; return its value id."""
        entry = describe(tensor)
        entry.op = len(self.ops)
        entry.unit_dim = self._unit_dim(plan, entry, values)
        if plan.name in UNINITIALIZED_OPS:
            entry.unobserved = "uninitialized memory"
        elif count > MAX_MEASURED_OUTPUTS:
            entry.unobserved = f"one of more than {MAX_MEASURED_OUTPUTS} outputs"
        if plan.layout and values and self._has_stats(values[0]):
            entry.is_rearranged = True
            return self.table.add(tensor, entry)
        if not entry.unobserved:
            self._observe(tensor, entry, self._unit_kind(plan, entry))
        value = self.table.add(tensor, entry)
        if not self.unmeasured:
            self.gradients.wait(tensor, value, entry)
        return value

    def _unit_kind(self, plan: OpPlan, entry: ValueEntry) -> UnitKind | None:
        """Return what is measured of the units of this value; None if it has none."""
        if plan.kind not in _KINDS_WITH_SHARED_MEAN or self._runner is not None:
            return None
        if len(entry.shape) < 2 or 0 in entry.shape:
            return None
        return UnitKind(entry.unit_dim, plan.kind == "activation", plan.bounds)

    def _has_stats(self, value: int) -> bool:
        """Whether the value has statistics, inherits them, or has a reason for having none."""
        entry = self.table.entries[value]
        return entry.is_rearranged or entry.forward is not None or bool(entry.unobserved)

    def _observe(self, tensor: Tensor, entry: ValueEntry, units: UnitKind | None = None) -> ValueEntry:
        """Measure a value and its `units`."""
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return entry
        if self.unmeasured:
            entry.unobserved = self.unmeasured
            return entry
        measured, entry.unobserved = stats.read_value(tensor, units)
        if measured is not None:
            entry.forward, entry.units, entry.shared_mean = measured
        elif self._runner is not None and (known := self._runner.known_stats(tensor)) is not None:
            entry.forward, entry.unobserved = known, ""
        return entry

    def _unit_dim(self, plan: OpPlan, entry: ValueEntry, values: Sequence[int]) -> int:
        """Return the dimension of the features: 1 after a convolution, else the last; later ops inherit it."""
        if len(entry.shape) <= 2:
            return -1
        if plan.channels_first:
            return 1
        first = self.table.entries[values[0]] if values else None
        return first.unit_dim if first is not None and len(first.shape) == len(entry.shape) else -1


def _outputs(result: Any, inputs: Sequence[Tensor], written: list[Tensor]) -> list[Tensor]:
    """Return the tensors that a call made: what it wrote in place, or what it returned that was not an argument."""
    if written:
        return written
    results = tensors_in(result)
    if len(results) == 1:  # nearly all: without a set of ids
        return [] if any(results[0] is tensor for tensor in inputs) else results
    arguments = {id(tensor) for tensor in inputs}
    return [tensor for tensor in results if id(tensor) not in arguments]


def _is_over_last(logits: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a softmax runs over the last axis, as one over keys does."""
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    return dim in (-1, logits.dim() - 1)
