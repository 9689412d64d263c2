"""The watched parameters, and what one optimizer step shows of each: gradient, weight and update norms."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from leadline.checks._history import ABSENT, FROZEN, NOT_OPTIMIZED
from leadline.monitor.norms import Norms, ShardNorms, is_simple, local, total
from leadline.monitor.step_losses import is_on_device
from leadline.tracer.inputs import unwrap
from leadline.tracer.names import index_model
from leadline.tracer.optimizer import can_move


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterTable:
    """Names and indices of all parameters; those outside the model (a learnable temperature) come last."""

    names: tuple[str, ...]
    indices: dict[int, int]
    """Index of each parameter, by the parameter's id."""
    by_optimizer: dict[int, list[Tensor]]
    """Parameters of each optimizer, by the optimizer's id."""
    indices_by_optimizer: dict[int, list[int]]
    """Indices of the parameters of each optimizer."""
    unoptimized: tuple[int, ...]
    """Indices of parameters that require a gradient and are in no optimizer."""
    simple: bool
    """All parameters are plain tensors of one kind, whose norms one fused call computes."""

    def is_current(self, optimizer: Optimizer) -> bool:
        """False if the optimizer got a group, or a parameter was replaced, since the table was built."""
        known = self.by_optimizer.get(id(optimizer), [])
        now = _parameters_of(optimizer)
        return len(now) == len(known) and all(a is b for a, b in zip(now, known, strict=True))

    def without_gradient(self, optimizer_ids: Iterable[int]) -> set[int]:
        """Return the ids of these optimizers' trainable parameters whose gradient is gone."""
        parameters = (each for key in optimizer_ids for each in self.by_optimizer.get(key, ()))
        return {id(each) for each in parameters if each.requires_grad and each.grad is None}


def build_parameter_table(model: nn.Module, optimizers: Iterable[Optimizer]) -> ParameterTable:
    """Return the table; names are those of the user's module without wrappers, as in a trace."""
    named = index_model(unwrap(model)).parameters
    names = [each.names[0] for each in named.values()]
    indices = {key: index for index, key in enumerate(named)}
    by_optimizer = {id(each): _parameters_of(each) for each in optimizers}
    for parameters in by_optimizer.values():
        for parameter in parameters:
            if id(parameter) not in indices:
                indices[id(parameter)] = len(names)
                names.append(f"outside the model, {tuple(parameter.shape)}, {len(names)}")
    indices_by_optimizer = {
        key: [indices[id(each)] for each in parameters] for key, parameters in by_optimizer.items()
    }
    optimized = {index for each in indices_by_optimizer.values() for index in each}
    unoptimized = tuple(
        index
        for index, each in enumerate(named.values())
        if each.item.requires_grad and index not in optimized
    )
    return ParameterTable(
        names=tuple(names),
        indices=indices,
        by_optimizer=by_optimizer,
        indices_by_optimizer=indices_by_optimizer,
        unoptimized=unoptimized,
        simple=all(is_simple(each) for parameters in by_optimizer.values() for each in parameters),
    )


def _parameters_of(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def learning_rates(optimizers: Sequence[Optimizer]) -> list[Tensor | float]:
    """Return the learning rates of all groups, of which the largest is recorded; those on a device as copies."""
    rates = [group["lr"] for each in optimizers for group in each.param_groups if group.get("lr") is not None]
    return [each.detach().clone() if is_on_device(each) else float(each) for each in rates]


# The measurements of one step.

AXIS = "parameters"
Vectors = dict[str, "array[float]"]


@dataclass(slots=True)
class ParameterNorms:
    """Norms of some parameters, and the indices of these parameters."""

    indices: list[int]
    norms: ShardNorms
    divisor: float = 1.0

    def complete(self, size: int) -> list[float] | None:
        """Return one norm per parameter in order if nothing is missing or scaled, by far the most frequent case."""
        if len(self.indices) != size or self.divisor != 1.0 or self.indices != list(range(size)):
            return None
        norms = self.norms.read()
        return None if None in norms else cast(list[float], norms)


@dataclass(slots=True)
class ParameterMeasurements:
    """What one step measured of the parameters of all optimizers; values may still be computed on a device."""

    table: ParameterTable
    gradients: list[ParameterNorms] = field(default_factory=list)
    updates: list[ParameterNorms] = field(default_factory=list)
    weights: list[ParameterNorms] = field(default_factory=list)
    absent: list[int] = field(default_factory=list)
    """Indices of parameters that require a gradient and got none."""
    _weights_before: dict[int, list[Tensor]] = field(default_factory=dict)

    def norms(self) -> list[Norms]:
        """All norms of this process's parts."""
        return [each.norms.own for each in (*self.gradients, *self.updates, *self.weights)]

    @torch.no_grad()
    def measure_gradients(self, optimizer: Optimizer, divisor: float = 1.0) -> None:
        """Take the norms of all gradients, which are still multiplied by a loss scale of `divisor`."""
        parameters = self.table.by_optimizer[id(optimizer)]
        indices = self.table.indices_by_optimizer[id(optimizer)]
        grads = [parameter.grad for parameter in parameters]
        present = [grad for grad in grads if grad is not None]
        if len(present) < len(grads):
            missing = [index for index, grad in zip(indices, grads, strict=True) if grad is None]
            trainable = {index for index, each in zip(indices, parameters, strict=True) if each.requires_grad}
            self.absent += [index for index in missing if index in trainable]
            indices = [index for index, grad in zip(indices, grads, strict=True) if grad is not None]
        simple = self.table.simple and all(grad.layout is torch.strided for grad in present)
        self.gradients.append(ParameterNorms(indices, ShardNorms(present, simple=simple), divisor))

    @torch.no_grad()
    def copy_weights(self, optimizer: Optimizer) -> None:
        """Copy what the step will change; `measure_updates` frees the memory."""
        _, weights = self._movable(optimizer)
        self._weights_before[id(optimizer)] = [
            each.clone() for each in local(weights, simple=self.table.simple)
        ]

    @torch.no_grad()
    def measure_updates(self, optimizer: Optimizer) -> None:
        """Take the norms of what the step changed, and of the new weights."""
        copies = self._weights_before.pop(id(optimizer), None)
        if not copies:
            return
        simple = self.table.simple
        indices, weights = self._movable(optimizer)
        local_weights = local(weights, simple=simple)
        torch._foreach_sub_(copies, local_weights)
        self.updates.append(ParameterNorms(indices, ShardNorms(weights, copies, simple=simple)))
        self.weights.append(ParameterNorms(indices, ShardNorms(weights, local_weights, simple=simple)))

    def _movable(self, optimizer: Optimizer) -> tuple[list[int], list[Tensor]]:
        """Return the indices and the detached tensors of the parameters that a step can change."""
        parameters = self.table.by_optimizer[id(optimizer)]
        indices = self.table.indices_by_optimizer[id(optimizer)]
        if not self.table.simple:
            movable = [pair for pair in zip(indices, parameters, strict=True) if can_move(pair[1])]
            indices, parameters = [index for index, _ in movable], [each for _, each in movable]
        return indices, [each.detach() for each in parameters]

    def last_gradient_norm(self) -> float:
        """Return the total norm of the gradients that were measured last; waits for a device."""
        last = self.gradients[-1]
        return total([norm / last.divisor for norm in last.norms.read() if norm is not None])

    def gradient_norms(self) -> dict[str, float]:
        """Return the measured gradient norms by parameter name."""
        return dict(zip(self.table.names, self.vectors().get("grad_norm", ()), strict=False))

    def vectors(self) -> Vectors:
        """Return one number per parameter; an absent gradient is `ABSENT`, that of a frozen parameter `FROZEN`."""
        vectors = {}
        for name, measured in (
            ("grad_norm", self.gradients),
            ("update_norm", self.updates),
            ("weight_norm", self.weights),
        ):
            if measured:
                vectors[name] = self._vector(measured, FROZEN if name == "grad_norm" else ABSENT)
        if "grad_norm" in vectors:
            for index in self.table.unoptimized:
                vectors["grad_norm"][index] = NOT_OPTIMIZED
            for index in self.absent:
                vectors["grad_norm"][index] = ABSENT
        return vectors

    def _vector(self, measured: list[ParameterNorms], missing: float) -> array[float]:
        complete = measured[0].complete(len(self.table.names)) if len(measured) == 1 else None
        if complete is not None:
            return array("f", complete)
        values = array("f", [missing]) * len(self.table.names)
        for each in measured:
            for index, norm in zip(each.indices, each.norms.read(), strict=True):
                if norm is not None:
                    values[index] = norm / each.divisor
        return values
