"""A model and its optimizer, probe for a few passes and steps and returned bit for bit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from leadline.case import Case
from leadline.errors import InputError
from leadline.readings.update.optimizer_state import preserve_optimizer, suspend_step_hooks
from leadline.tracer import stats
from leadline.tracer.eager import eager
from leadline.tracer.inputs import call_model, check_arguments, check_differentiable, find_loss, unwrap
from leadline.tracer.names import ModelIndex, index_model
from leadline.tracer.recorder import Recorder
from leadline.tracer.restore import WriteGuard, hide_gradients, preserve_state
from leadline.tracer.values import tensors_in

Tensors = list[Tensor]
Found = tuple[Tensor | None, ...]
BeforeStep = Callable[[], object]
REENTRANT = "compatible with .grad()"  # how torch refuses autograd.grad there


@dataclass(slots=True, kw_only=True)
class StepProbe:
    """Lives inside `borrow`; every pass starts from the same buffers, attributes and random numbers."""

    case: Case
    model: nn.Module
    model_index: ModelIndex
    guard: WriteGuard
    optimizer: Optimizer
    names: list[str]
    """Of the parameters that the optimiser moves, in the order of all lists of tensors here."""
    parameters: Tensors
    start: Tensors
    """Where the parameters were."""
    rewind: Callable[[], object]
    """Parameters and optimiser are as before the step again."""

    def forward(self) -> tuple[Tensor, Tensors]:
        """The loss and the outputs, for the parameters as they are now."""
        self.guard.rewind()
        inputs, targets = copy_batch((self.case.inputs, self.case.targets))
        output = call_model(self.model, inputs)
        loss = find_loss(output, self.case.loss, targets)
        return loss, outputs_of(output, loss)

    def look(self) -> tuple[float, Tensors]:
        """The same in numbers. The graph is built all the same: without one, a model may run other code."""
        loss, outputs = self.forward()
        return loss.item(), [each.detach() for each in outputs]

    def gradient(self) -> tuple[Tensor, Tensors, Tensors]:
        """Loss, outputs and gradients; a parameter that the loss does not reach has a gradient of zeros."""
        loss, outputs = self.forward()
        check_differentiable(loss, self.model_index)
        trainable = [parameter for parameter in self.parameters if parameter.requires_grad]
        try:
            found: Found = torch.autograd.grad(loss, trainable, allow_unused=True)
        except RuntimeError as error:
            if REENTRANT not in str(error):
                raise
            loss, outputs = self.forward()
            found = self._accumulated(loss, trainable)
        grads = {id(p): g for p, g in zip(trainable, found, strict=True) if g is not None}
        for parameter in self.parameters:
            parameter.grad = grads.get(id(parameter))
        dense = [_dense(grads.get(id(parameter)), parameter) for parameter in self.parameters]
        return loss.detach(), [each.detach() for each in outputs], dense

    def _accumulated(self, loss: Tensor, trainable: Tensors) -> Found:
        """Reentrant checkpoints only know `backward`, which leaves gradients in every leaf."""
        for parameter in self.parameters:
            parameter.grad = None
        torch.autograd.backward(loss)
        return tuple(parameter.grad for parameter in trainable)

    def step(self, before_step: BeforeStep | None) -> None:
        """One real step of the user's optimiser, on the gradients that `gradient` left in `.grad`."""
        if before_step is not None:
            before_step()
        with suspend_step_hooks(self.optimizer), torch.no_grad():
            if needs_closure(self.optimizer):
                self.optimizer.step(self._closure(before_step))
            else:
                self.optimizer.step()

    def step_at(self, factor: float) -> bool:
        """The same step again, at `factor` times the rates; False if this optimiser has none, or asks for the loss."""
        self.rewind()
        groups = [group for group in self.optimizer.param_groups if group.get("lr") is not None]
        if not groups or needs_closure(self.optimizer):
            return False
        rates = [group["lr"] for group in groups]
        try:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate * factor
            self.step(None)
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
        """Put the parameters (or only those of these names) at start + multiple * direction, the others at start."""
        moving = [i for i, name in enumerate(self.names) if multiple and (only is None or name in only)]
        with torch.no_grad():
            here = [parameter.detach() for parameter in self.parameters]
            torch._foreach_copy_(here, self.start)
            if moving:
                deltas = [direction[i].to(here[i].dtype) for i in moving]
                torch._foreach_add_([here[i] for i in moving], deltas, alpha=multiple)


@contextmanager
def open_probe(case: Case) -> Iterator[StepProbe]:
    """Lend model and optimiser out; on exit, whatever happened, both are bit for bit as they were."""
    own = unwrap(case.model)
    model_index = index_model(own)
    optimizer = _check_optimizer(case.optimizer, model_index)
    check_arguments(case, model_index, Recorder)
    names, parameters, strangers = _moved(optimizer, model_index)
    _check_parameters(names, parameters)
    lent = [model_index, index_model(case.loss)] if isinstance(case.loss, nn.Module) else [model_index]
    with (
        preserve_state(lent) as guard,
        hide_gradients(strangers),
        preserve_optimizer(optimizer, [*parameters, *strangers]) as keeping,
        eager(),
        torch.inference_mode(mode=False),
        torch.enable_grad(),
    ):
        guard.before_write(list(_untouched(model_index, parameters)))
        yield StepProbe(
            case=case,
            model=own,
            model_index=model_index,
            guard=guard,
            optimizer=optimizer,
            names=names,
            parameters=parameters,
            start=keeping.copies[: len(parameters)],
            rewind=keeping.rewind,
        )


def _untouched(model_index: ModelIndex, parameters: Tensors) -> Iterator[Tensor]:
    """Parameters that the optimiser does not hold, but that a forward pass may write into (clamping, weight tricks)."""
    moved = {id(parameter) for parameter in parameters}
    for named in model_index.parameters.values():
        if id(named.item) not in moved:
            yield named.item


def _moved(optimizer: Optimizer, model_index: ModelIndex) -> tuple[list[str], Tensors, Tensors]:
    """Names and tensors of the model's parameters that the optimiser holds; then those of others."""
    held = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    ours = [
        (model_index.parameters[key].names[0], p) for key, p in held.items() if key in model_index.parameters
    ]
    strangers = [p for key, p in held.items() if key not in model_index.parameters]
    return [name for name, _ in ours], [p for _, p in ours], strangers


def _check_optimizer(optimizer: Any, model_index: ModelIndex) -> Optimizer:
    if isinstance(optimizer, Optimizer):
        return optimizer
    raise InputError(
        expected="the optimiser that the model is trained with (a torch.optim.Optimizer)",
        got="none" if optimizer is None else type(optimizer).__qualname__,
        fix="pass optimizer=torch.optim.AdamW(model.parameters(), lr=...), or the fifth field of the Case",
    )


def _check_parameters(names: Sequence[str], parameters: Sequence[Tensor]) -> None:
    for name, parameter in zip(names, parameters, strict=True):
        if blind := stats.unobservable(parameter):
            raise InputError(
                expected="parameters that hold numbers",
                got=f"{name}: {blind}",
                fix="load the weights, and measure the step on the whole model in one process (not on shards)",
            )


def needs_closure(optimizer: Optimizer) -> bool:
    """LBFGS and its kind call the loss themselves; for the others `closure` has a default."""
    try:
        wanted = inspect.signature(optimizer.step).parameters.get("closure")
    except (TypeError, ValueError):
        return False
    return wanted is not None and wanted.default is wanted.empty


def copy_batch(batch: Any) -> Any:
    """A copy of the batch for each pass: a model may write into its inputs. What was one tensor stays one."""
    made: dict[int, Tensor] = {}

    def copied(tensor: Any) -> Any:
        if not isinstance(tensor, Tensor):
            return tensor
        if id(tensor) not in made:
            made[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return made[id(tensor)]

    return tree_map(copied, batch)


def outputs_of(output: Any, loss: Tensor | None = None) -> Tensors:
    """What counts as the function: the logits if the output has some, else every floating-point tensor in it."""
    logits = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return [logits]
    found = [each for each in tensors_in(output) if each.is_floating_point() or each.is_complex()]
    return [each for each in found if each.numel() > 1] or found or ([] if loss is None else [loss])


def _dense(grad: Tensor | None, parameter: Tensor) -> Tensor:
    if grad is None:
        return torch.zeros_like(parameter, memory_format=torch.preserve_format).detach()
    return (grad.to_dense() if grad.layout is not torch.strided else grad).detach()
