"""Runs passes and steps of a model and its optimizer, and restores both bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from leadline.case import Case
from leadline.errors import InputError
from leadline.joint_optimizer import members_of, needs_closure
from leadline.readings.update.step_hooks import suspend_step_hooks
from leadline.readings.update.step_parts import split_parameters, states_of, steps_each_alone
from leadline.tracer import stats
from leadline.tracer.inputs import (
    call_model,
    check_arguments,
    check_differentiable,
    check_optimizer,
    copy_batch,
    find_loss,
    trainable_leaves,
    unwrap,
)
from leadline.tracer.names import ModelIndex, index_model
from leadline.tracer.optimizer import can_move
from leadline.tracer.process import run_passes
from leadline.tracer.recorder import Recorder
from leadline.tracer.restore import StateGuard, hide_gradients, preserve_state
from leadline.tracer.shield import atomic_contextmanager
from leadline.tracer.values import jagged_values, tensors_in

Tensors = list[Tensor]
Gradients = tuple[Tensor | None, ...]
BeforeStep = Callable[[], object]
# Cited: Liu et al., "On the variance of the adaptive learning rate and beyond", 2020: with the usual second moments of
# 0.999 the variance is not tractable in the first five steps, which RAdam may leave out.
MAX_IDLE_STEPS = 6
# Part of the message with which torch refuses `autograd.grad` inside a reentrant checkpoint.
REENTRANT_CHECKPOINT_ERROR = "compatible with .grad()"


@dataclass(slots=True, kw_only=True)
class StepProbe:
    """Model and optimizer inside `open_probe`; every pass starts from the same buffers and random numbers."""

    case: Case
    model: nn.Module
    model_index: ModelIndex
    guard: StateGuard
    optimizer: Optimizer
    names: list[str]
    """Names of the parameters that the optimizer moves, in the order of all lists of tensors here."""
    parameters: Tensors
    start: Tensors
    """Copies of the parameters before the first step."""
    batch: tuple[Any, Any]
    """Inputs and targets of the next pass; at first those of the case."""
    seed: int | None = None
    """Seed of the random numbers of a pass; None: those that the user's program would draw next."""
    keeps_state: bool = True
    """Steps go on from the state of the one before; otherwise `first_moving_step` leaves the state as it was."""
    prepare: Callable[[], None] | None = None
    """Called before each pass, after everything was put back: what a pass is to start with instead."""
    overwrites_gradients: bool = False
    """The last step, or what ran before it, changed the gradients in place, as clipping and some optimizers do."""

    def forward(self) -> tuple[Tensor, Tensors]:
        """The loss and the outputs at the current parameters."""
        self.guard.rewind()
        if self.prepare is not None:
            self.prepare()
        if self.seed is not None:
            torch.manual_seed(self.seed)
        inputs, targets = copy_batch(self.batch)
        output = call_model(self.model, inputs)
        loss = find_loss(output, self.case.loss, targets)
        return loss, outputs_of(output, loss)

    def output(self) -> Any:
        """What the model returns for the batch, without its graph."""
        self.guard.rewind()
        inputs, _ = copy_batch(self.batch)
        return tree_map_only(Tensor, Tensor.detach, call_model(self.model, inputs))

    def evaluate(self) -> tuple[float, Tensors]:
        """The loss and the outputs without their graph.

        The graph is built and dropped, because a model may run other code without one.
        """
        loss, outputs = self.forward()
        return loss.item(), [each.detach() for each in outputs]

    def loss(self) -> float:
        return self.evaluate()[0]

    def loss_and_gradient(self) -> float:
        """The loss; the gradients are in `.grad`."""
        return self.gradient()[0].item()

    def gradient(self) -> tuple[Tensor, Tensors, Tensors]:
        """Loss, outputs and gradients; a parameter that the loss does not reach has a gradient of zeros."""
        self.drop_gradients(self.parameters)  # those of the step before, so that both are never in memory
        loss, outputs = self.forward()
        check_differentiable(loss, self.model_index)
        trainable = [parameter for parameter in self.parameters if parameter.requires_grad]
        try:
            gradients: Gradients = torch.autograd.grad(loss, trainable, allow_unused=True)
        except RuntimeError as error:
            if REENTRANT_CHECKPOINT_ERROR not in str(error):
                raise
            loss, outputs = self.forward()
            self.drop_gradients(self.parameters)
            gradients = self._gradients_by_backward(loss, trainable)
        by_parameter = {id(p): g for p, g in zip(trainable, gradients, strict=True) if g is not None}
        for parameter in self.parameters:
            parameter.grad = by_parameter.get(id(parameter))
        dense = [_dense(by_parameter.get(id(parameter)), parameter) for parameter in self.parameters]
        return loss.detach(), [each.detach() for each in outputs], dense

    def _gradients_by_backward(self, loss: Tensor, trainable: Tensors) -> Gradients:
        """Gradients that `backward` accumulates, for reentrant checkpoints, which do not support `autograd.grad`."""
        with hide_gradients(trainable_leaves(self.batch)):
            torch.autograd.backward(loss)
        return tuple(parameter.grad for parameter in trainable)

    def gradient_at_start(self) -> Tensors:
        """The gradients before the first step, computed again."""
        self.guard.rewind_step()
        return self.gradient()[2]

    def drop_gradients(self, parameters: Tensors) -> None:
        for parameter in parameters:
            parameter.grad = None

    def step(self, before_step: BeforeStep | None) -> None:
        """Make one real step of the user's optimizer with the gradients that `gradient` left in `.grad`."""
        versions = [_version(parameter.grad) for parameter in self.parameters]
        if before_step is not None:
            before_step()
        with suspend_step_hooks(self.optimizer), torch.no_grad():
            if needs_closure(self.optimizer):
                self.optimizer.step(self._closure(before_step))
            else:
                self._step_without_closure()
        self.overwrites_gradients = versions != [_version(parameter.grad) for parameter in self.parameters]

    def _step_without_closure(self) -> None:
        try:
            self.optimizer.step()
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0]
            raise InputError(
                expected="an optimizer that can step after a plain backward pass",
                got=f"{type(error).__name__} in its step: {reason}",
                fix="make one step of it in your loop, or pass update=False",
            ) from error

    def first_moving_step(self, before_step: BeforeStep | None) -> None:
        """Make the first step that moves a parameter.

        Some optimizers only collect statistics in their first steps (SOAP in one, RAdam in five). They get the same
        gradient again, so that what is measured is a step.
        """
        if self.keeps_state:
            self._step_until_moved(before_step)
            return
        if before_step is None and self._step_in_parts():
            return
        with self.guard.preserve_optimizer():
            self._step_until_moved(before_step)

    def _step_in_parts(self) -> bool:
        """Make one step part by part, so that the state of only one part is copied or made at a time.

        Return False, with everything as before, if nothing moved, the parameters are small, or the step of one of them
        depends on the others.
        """
        parts = split_parameters(self.parameters)
        if len(parts) == 1 or not steps_each_alone(self.optimizer, self.parameters):
            return False
        grads = [parameter.grad for parameter in self.parameters]
        versions = [_version(grad) for grad in grads]
        self.drop_gradients(self.parameters)
        with suspend_step_hooks(self.optimizer), torch.no_grad():
            for part in parts:
                self._step_part(self.parameters[part], grads[part])
        for parameter, grad in zip(self.parameters, grads, strict=True):
            parameter.grad = grad
        self.overwrites_gradients = versions != [_version(grad) for grad in grads]
        if self._has_moved():
            return True
        self.guard.rewind_step()
        if self.overwrites_gradients:
            self.gradient()
        return False

    def _step_part(self, parameters: Tensors, grads: Sequence[Tensor | None]) -> None:
        """Step these parameters alone, and undo what that does to the optimizer."""
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
        states = states_of(self.optimizer, parameters)
        with self.guard.preserve_optimizer(tensors_in(states)):
            self._step_without_closure()
        self.guard.rewind_dicts([*states, *(member.state for member in members_of(self.optimizer))])
        self.drop_gradients(parameters)

    def _step_until_moved(self, before_step: BeforeStep | None) -> None:
        self.step(before_step)
        for _ in range(MAX_IDLE_STEPS):
            if needs_closure(self.optimizer) or self._has_moved():
                return
            if self.overwrites_gradients:
                self.gradient()
            self.step(before_step)

    def _has_moved(self) -> bool:
        pairs = zip(self.parameters, self.start, strict=True)
        return any(p.grad is not None and not torch.equal(p.detach(), start) for p, start in pairs)

    def step_at(self, factor: float) -> bool:
        """Repeat the first step at `factor` times the rates; False if the optimizer cannot.

        It has no rate, needs a closure, or refuses a rate beyond the range of its parameters (65504 in float16).
        """
        self.guard.rewind_step()
        groups = [group for group in self.optimizer.param_groups if group.get("lr") is not None]
        if not groups or needs_closure(self.optimizer):
            return False
        if self.overwrites_gradients:
            self.gradient()
        rates = [group["lr"] for group in groups]
        try:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate * factor
            self.first_moving_step(None)
        except (RuntimeError, InputError):
            self.guard.rewind_step()
            return False
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate
        return True

    def _closure(self, before_step: BeforeStep | None) -> Callable[[], float]:
        def evaluate() -> float:
            with torch.enable_grad():
                loss, _, _ = self.gradient()
            if before_step is not None:
                before_step()
            return loss.item()

        return evaluate

    def move(self, direction: Sequence[Tensor], multiple: float, only: Collection[str] | None = None) -> None:
        """Set the parameters (or only those named in `only`) to start + multiple * direction, the others to start."""
        moving = [i for i, name in enumerate(self.names) if multiple and (only is None or name in only)]
        with torch.no_grad():
            values = [parameter.detach() for parameter in self.parameters]
            torch._foreach_copy_(values, self.start)
            halves = [i for i in moving if values[i].dtype == torch.float16]
            for i in halves:  # float16 holds neither a large nor a tiny multiple
                values[i].copy_(values[i].float() + direction[i].float() * multiple)
            others = [i for i in moving if values[i].dtype != torch.float16]
            if others:
                deltas = [direction[i].to(values[i].dtype) for i in others]
                torch._foreach_add_([values[i] for i in others], deltas, alpha=multiple)


@atomic_contextmanager
def open_probe(case: Case, *, keeps_state: bool = True) -> Iterator[StepProbe]:
    """A probe of the case; on exit, also after an error, model and optimizer are bit for bit as before.

    Without `keeps_state`, the optimizer's state is copied only during a step, and is as before after it.
    """
    model = unwrap(case.model)
    model_index = index_model(model)
    optimizer = _check_optimizer(case.joint_optimizer)
    check_arguments(case, model_index, Recorder)
    check_optimizer(optimizer, model_index)
    names, parameters, foreign = _split_parameters(optimizer, model_index)
    _check_parameters(names, parameters)
    with (
        run_passes(),
        preserve_state(case, model_index, makes_steps=keeps_state) as guard,
        hide_gradients(foreign),
    ):
        yield StepProbe(
            case=case,
            batch=(case.inputs, case.targets),
            model=model,
            model_index=model_index,
            guard=guard,
            optimizer=optimizer,
            names=names,
            parameters=parameters,
            start=guard.values_of(parameters),
            keeps_state=keeps_state,
        )


def _split_parameters(optimizer: Optimizer, model_index: ModelIndex) -> tuple[list[str], Tensors, Tensors]:
    """Names and tensors of the model's parameters in the optimizer, and its tensors that are not the model's."""
    held = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    named = [
        (model_index.parameters[key].names[0], p)
        for key, p in held.items()
        if key in model_index.parameters and can_move(p)
    ]
    foreign = [p for key, p in held.items() if key not in model_index.parameters]
    return [name for name, _ in named], [p for _, p in named], foreign


def _check_optimizer(optimizer: Any) -> Optimizer:
    if isinstance(optimizer, Optimizer):
        _check_mode(optimizer)
        return optimizer
    raise InputError(
        expected="the optimizer that trains the model (a torch.optim.Optimizer)",
        got="none" if optimizer is None else type(optimizer).__qualname__,
        fix="pass optimizer=torch.optim.AdamW(model.parameters(), lr=...), or set the fifth field of the Case",
    )


def _check_mode(optimizer: Optimizer) -> None:
    """Raise if a schedule-free optimizer holds averaged weights, with which it refuses to step."""
    for member in members_of(optimizer):
        if any(group.get("train_mode") is False for group in member.param_groups) and hasattr(
            member, "train"
        ):
            raise InputError(
                expected=f"{type(member).__name__} in training mode",
                got="its evaluation mode, in which it cannot step",
                fix="call optimizer.train() before the step, and optimizer.eval() before an evaluation",
            )


def _check_parameters(names: Sequence[str], parameters: Sequence[Tensor]) -> None:
    if parameters and not any(parameter.requires_grad for parameter in parameters):
        raise InputError(
            expected="an optimizer with a parameter that requires a gradient",
            got=f"{len(parameters)} frozen ones, such as {names[0]}",
            fix="pass the parameters that you train: [p for p in model.parameters() if p.requires_grad]",
        )
    for name, parameter in zip(names, parameters, strict=True):
        reason = stats.unobservable(parameter)
        if reason:
            raise InputError(
                expected="parameters that hold numbers",
                got=f"{name}: {reason}",
                fix="load the weights, and measure the step on the whole model in one process (not on shards)",
            )


def outputs_of(output: Any, loss: Tensor | None = None) -> Tensors:
    """The tensors that count as the function: the logits if the output has any, else all floating-point tensors."""
    logits = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return [jagged_values(logits)]
    tensors = map(jagged_values, tensors_in(output))
    floating = [each for each in tensors if each.is_floating_point() or each.is_complex()]
    return [each for each in floating if each.numel() > 1] or floating or ([] if loss is None else [loss])


def _version(grad: Tensor | None) -> int | None:
    return None if grad is None else grad._version


def _dense(grad: Tensor | None, parameter: Tensor) -> Tensor:
    if grad is None:
        return torch.zeros_like(parameter, memory_format=torch.preserve_format).detach()
    return (grad.to_dense() if grad.layout is not torch.strided else grad).detach()
