"""Record a real training pass while it runs: nothing runs twice, nothing is restored, nothing is changed."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from leadline.records import Gap, Trace
from leadline.tracer.build import MeasuredPass, measure_pass, read_pass
from leadline.tracer.calls import OpPlan
from leadline.tracer.inputs import loss_of_output
from leadline.tracer.names import ModelIndex, index_model
from leadline.tracer.recorder import OnError, RecordedOp, Recorder
from leadline.tracer.sharded import follow_gathered_parameters
from leadline.tracer.stats import Known, RawStats
from leadline.tracer.trace import model_fields
from leadline.tracer.values import ValueEntry, tensors_in

OUTSIDE_FORWARD = "computed outside the model's forward"


class LivePass:
    """One forward pass of a model in training, and the backward pass that follows it.

    `enter` is called before the forward and `leave` after it. The recorder is active only between the two, on the
    thread that runs the model; afterwards only hooks on the graph of this pass remain. An error of Leadline itself
    goes to `on_error`.
    """

    def __init__(
        self,
        model: nn.Module,
        on_error: OnError,
        model_index: ModelIndex | None = None,
        part: nn.Module | None = None,
    ) -> None:
        """`model_index` is needed for a sharded model: it must be made between two passes, while all are shards.

        `part` is the part of the model whose call is recorded, if the loop does not call the model itself.
        """
        self.model = model
        self.model_index = index_model(model) if model_index is None else model_index
        self.recorder = Recorder(self.model_index, on_error=on_error)
        self.entered = self.done = False
        self.loss: Tensor | None = None
        """The loss, if the model itself returns it."""
        self._part = model if part is None else part
        """The module whose call is recorded."""
        self._outputs: list[int] = []
        self._undo = ExitStack()
        self._thread: int | None = None
        """The thread on whose stack of modes the recorder is."""
        self._measured: MeasuredPass | None = None
        self._loss_entry: ValueEntry | None = None
        """The value that stands for a loss outside the model."""
        self._reached: list[int] = []
        """Outputs of the model that got a gradient from it."""
        self._fields: dict[str, Any] = {}
        """Fields of the trace that are known when the pass ends."""

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Start recording a call of the model. When it ends, call `abandon`, and then `leave` if it did not raise."""
        self.entered = True
        self.recorder.name_source(args[0] if len(args) == 1 else args, "input", "input")
        self.recorder.name_source(kwargs, "input", "input")
        self.recorder.calls.begin(self._part)
        self._undo.enter_context(follow_gathered_parameters(self.recorder, self.model_index))
        self._undo.enter_context(
            self.recorder.calls.follow(self.recorder.module_called, self.recorder.module_returned)
        )
        self._thread = threading.get_ident()
        self.recorder.__enter__()  # type: ignore[no-untyped-call]

    def leave(self, output: Any) -> None:
        """Start to wait for gradients: the model returned `output`, and `abandon` was called."""
        self.done = True
        with torch._C.DisableTorchFunction():
            self.loss = loss_of_output(output)
            ends = [self.loss] if self.loss is not None else tensors_in(output)
            self._outputs = [self.recorder.value_of(each) for each in ends if each.requires_grad]
        self.recorder.gradients.is_listening = True

    def abandon(self) -> None:
        """Remove the recorder and the global hooks. Needed also after a KeyboardInterrupt, for which no hook runs."""
        self._undo.close()
        self._thread = None
        modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]  # torch has no public name for it
        if modes and modes[-1] is self.recorder:
            self.recorder.__exit__(None, None, None)

    @property
    def runs_elsewhere(self) -> bool:
        """Whether another thread runs the model now. Only that thread can remove the recorder from its stack."""
        return self._thread not in (None, threading.get_ident())

    @property
    def seconds(self) -> float:
        """Time that recording took so far, inside the model's own pass."""
        return self.recorder.barrier.seconds

    @property
    def seen(self) -> bool:
        """Whether the forward returned something that requires a gradient."""
        return self.done and bool(self._outputs)

    def measure(self, optimizer: torch.optim.Optimizer | None, loss_scale: float = 1.0) -> None:
        """Measure what is left. Call it after the backward pass and before the optimizer's step.

        Gradients of parameters are those in `.grad`: accumulated over micro-batches and clipped, as the optimizer
        will see them. Gradients of activations are divided by `loss_scale`. Nothing is read from a device.
        """
        recorder = self.recorder
        recorder.gradients.is_listening = False
        recorder.attentions.measure()
        for entry in recorder.table.entries:
            if entry.backward is not None and loss_scale != 1.0:
                entry.backward = _unscaled(entry.backward, loss_scale)
        loss_value, gaps = self._end()
        if self._part is not self.model:
            name = self.model_index.modules[id(self._part)].names[0]
            gaps = (*gaps, Gap(what=f"what runs outside {name}", why=f"the loop calls {name}, not the model"))
        if recorder.gradients.regions:
            why = "they run again in the backward pass, which is not recorded while training"
            gaps = (*gaps, Gap(what="gradients inside a reentrant checkpoint", why=why))
            recorder.gradients.regions.clear()
        grads = {key: named.item.grad for key, named in self.model_index.parameters.items()}
        self._fields = model_fields(self.model, self.model_index, optimizer)
        self._fields |= {"loss_value": loss_value, "gaps": gaps}
        self._measured = measure_pass(recorder, self.model_index, grads)
        recorder.table.forget_tensors()

    def pending(self) -> Iterable[Tensor]:
        """Numbers of a measured pass that a device may still compute; `read` needs all of them."""
        return () if self._measured is None else self._measured.pending()

    def read(self, loss: float | None, known: Known, grad_norms: Mapping[str, float] | None = None) -> Trace:
        """Return the trace of a measured pass, whose pending numbers are `known`.

        Of sharded parameters only the norms of their gradients are known, from `grad_norms`.
        """
        if self._measured is None:
            raise RuntimeError("a pass is measured before it is read")
        if self._loss_entry is not None:
            self._set_loss(self._loss_entry, loss, known)
        return read_pass(self._measured, self._fields | {"loss": loss}, known, grad_norms or {})

    def _set_loss(self, entry: ValueEntry, loss: float | None, known: Known) -> None:
        entries = self.recorder.table.entries
        inputs = (entries[value] for value in self._reached)
        if loss is None and any(_is_non_finite(each, known) for each in inputs):
            loss = math.nan  # the loss of non-finite outputs is not finite either
        entry.forward = None if loss is None else _stats_of_number(loss)
        entry.unobserved = OUTSIDE_FORWARD if loss is None else ""

    def _end(self) -> tuple[int, tuple[Gap, ...]]:
        """Return the value id of the loss: the model's own, or the output of an added op that stands for the loss."""
        if self.loss is not None and self._outputs:
            return self._outputs[0], ()
        entries = self.recorder.table.entries
        reached = [
            value for value in self._outputs if entries[value].backward or entries[value].is_rearranged
        ]
        plan = OpPlan(name="loss", callable="loss")
        index = len(self.recorder.ops)
        inputs = tuple(reached or self._outputs)
        self.recorder.ops.append(RecordedOp(plan, "", 0, "loss", inputs, (len(entries),)))
        entry = ValueEntry(shape=(), dtype="float32")
        entry.op = index
        entries.append(entry)
        self._loss_entry, self._reached = entry, reached
        return len(entries) - 1, (Gap(what="the ops of the loss", why=OUTSIDE_FORWARD),)


def is_recording() -> bool:
    """Whether a recorder is active on this thread; a pass can be recorded by one recorder only."""
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return any(isinstance(mode, Recorder) for mode in modes)


def is_in_backward() -> bool:
    """Whether this thread runs an op of a backward pass, such as the forward pass of an activation checkpoint."""
    return bool(torch._C._current_graph_task_id() != -1)


def is_inside_vmap() -> bool:
    """Whether this code runs inside `torch.func.vmap`, where the elements of a tensor cannot be read."""
    levels = torch._C._functorch.get_interpreter_stack() or ()
    return any(each.key() == torch._C._functorch.TransformType.Vmap for each in levels)


def _stats_of_number(value: float) -> RawStats:
    is_finite = math.isfinite(value)
    return RawStats(1, 1.0, value, abs(value), value, value, float(value != 0), float(not is_finite))


def _is_non_finite(entry: ValueEntry, known: Known) -> bool:
    count = None if entry.forward is None else entry.forward.non_finite
    return bool(known[id(count)][0] if isinstance(count, Tensor) else count)


def _unscaled(raw: RawStats, scale: float) -> RawStats:
    return raw._replace(scale=raw.scale / scale, low=raw.low / scale, high=raw.high / scale)
