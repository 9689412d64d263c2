"""A real training pass, written down as it happens: nothing is run twice, nothing is put back, nothing is changed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from leadline.records import Gap, Trace
from leadline.tracer.build import finish
from leadline.tracer.calls import Plan
from leadline.tracer.inputs import loss_of_output
from leadline.tracer.names import ModelIndex, index_model
from leadline.tracer.recorder import OnError, Recorder, Step
from leadline.tracer.sharded import gathering
from leadline.tracer.stats import RawStats
from leadline.tracer.trace import model_fields
from leadline.tracer.values import Entry, tensors_in

OUTSIDE = "computed outside of the model's forward"


class Bystander:
    """In the place of the guard that puts written tensors back: what training writes is to stay."""

    def watch(self, tensor: Tensor) -> None:
        pass

    def before_write(self, targets: Sequence[Tensor]) -> None:
        pass


class LivePass:
    """One forward pass of the model and the backward pass that follows it.

    `enter` and `leave` stand around the forward. The mode is active only between the two, on the thread that runs
    the model; afterwards only the nodes of the pass's own graph know of it. An error of our own goes to `forgive`.
    """

    def __init__(self, model: nn.Module, forgive: OnError, model_index: ModelIndex | None = None) -> None:
        """`census`: of a sharded model, taken between two passes: in this one some of its parameters are whole."""
        self.model = model
        self.model_index = index_model(model) if model_index is None else model_index
        self.recorder = Recorder(self.model_index, Bystander(), forgive=forgive)
        self.entered = self.done = False
        self.loss: Tensor | None = None
        """The loss, where the model itself returns it."""
        self._outputs: list[int] = []
        self._undo = ExitStack()

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model was called. Call `abandon` when it is done, and if it did not raise then `leave`."""
        self.entered = True
        self.recorder.name_source(args[0] if len(args) == 1 else args, "input", "input")
        self.recorder.name_source(kwargs, "input", "input")
        self.recorder.calls.counts[id(self.model)] += 1
        self._undo.enter_context(gathering(self.recorder, self.model_index))
        self._undo.enter_context(self.recorder.calls.follow(self.recorder.entered, self.recorder.returned))
        self.recorder.__enter__()  # type: ignore[no-untyped-call]

    def leave(self, output: Any) -> None:
        """The model returned, and `abandon` was called. From here on gradients are waited for."""
        self.done = True
        with torch._C.DisableTorchFunction():
            self.loss = loss_of_output(output)
            ends = [self.loss] if self.loss is not None else tensors_in(output)
            self._outputs = [self.recorder.value_of(each) for each in ends if each.requires_grad]
        self.recorder.gradients.listening = True

    def abandon(self) -> None:
        """Take the mode and the global hooks away. Also after a KeyboardInterrupt, of which no hook is told."""
        self._undo.close()
        modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]  # torch has no public name for it
        if modes and modes[-1] is self.recorder:
            self.recorder.__exit__(None, None, None)

    @property
    def seconds(self) -> float:
        """What recording took so far, inside of the model's own pass."""
        return self.recorder.seconds

    @property
    def seen(self) -> bool:
        """The forward returned something with a gradient, and the gradient came."""
        return self.done and bool(self._outputs)

    def finish(
        self,
        optimizer: torch.optim.Optimizer | None,
        loss: float | None,
        loss_scale: float = 1.0,
        grad_norms: Mapping[str, float] | None = None,
    ) -> Trace:
        """The trace of the pass; call it when gradients are there and the step has not been made.

        Gradients of parameters are those in `.grad`: accumulated over micro-batches and clipped, as the optimiser will
        see them. Those of activations are divided by `loss_scale`. Of sharded parameters only `grad_norms` are told.
        """
        recorder = self.recorder
        recorder.gradients.listening = False
        for entry in recorder.ledger.entries:
            if entry.backward is not None and loss_scale != 1.0:
                entry.backward = _unscaled(entry.backward, loss_scale)
        value, gaps = self._end(loss)
        if recorder.gradients.regions:
            why = "they run again in the backward pass, which is not recorded while training"
            gaps = (*gaps, Gap(what="gradients inside a reentrant checkpoint", why=why))
            recorder.gradients.regions.clear()
        grads = {key: named.item.grad for key, named in self.model_index.parameters.items()}
        found = model_fields(self.model, self.model_index, optimizer)
        facts = {"loss": loss, "loss_value": value, "gaps": gaps}
        return finish(recorder, self.model_index, grads, found | facts, grad_norms or {})

    def _end(self, loss: float | None) -> tuple[int, tuple[Gap, ...]]:
        """The value that the pass comes down to: the model's own loss, or an op that stands for what made the loss."""
        if self.loss is not None and self._outputs:
            return self._outputs[0], ()
        entries = self.recorder.ledger.entries
        reached = [value for value in self._outputs if entries[value].backward or entries[value].moved]
        plan = Plan(name="loss", callable="loss")
        index = len(self.recorder.steps)
        self.recorder.steps.append(
            Step(plan, "", 0, "loss", tuple(reached or self._outputs), (len(entries),))
        )
        entry = Entry(shape=(), dtype="float32", op=index)
        if loss is None and any(_is_broken(entries[value]) for value in reached):
            loss = math.nan  # a loss of what is not finite is not finite either
        entry.forward = None if loss is None else _number(loss)
        entry.unobserved = OUTSIDE if loss is None else ""
        entries.append(entry)
        return len(entries) - 1, (Gap(what="the ops of the loss", why=OUTSIDE),)


def _number(value: float) -> RawStats:
    """The statistics of one known number."""
    finite = math.isfinite(value)
    return RawStats(1, 1.0, value, abs(value), value, value, float(value != 0), float(not finite))


def _is_broken(entry: Entry) -> bool:
    return entry.forward is not None and bool(entry.forward.non_finite)


def _unscaled(reading: RawStats, scale: float) -> RawStats:
    return reading._replace(scale=reading.scale / scale, low=reading.low / scale, high=reading.high / scale)


def is_recording() -> bool:
    """A recorder is at work on this thread: one pass can be written down by one recorder only."""
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return any(isinstance(mode, Recorder) for mode in modes)


def is_inside_vmap() -> bool:
    """Inside of `torch.func.vmap`, where no number can be read."""
    levels = torch._C._functorch.get_interpreter_stack() or ()
    return any(each.key() == torch._C._functorch.TransformType.Vmap for each in levels)
