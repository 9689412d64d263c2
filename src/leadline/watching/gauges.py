"""What one step of an optimiser shows of every parameter: its gradient, its size, and how far it moved."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim import Optimizer

from leadline.alarms.history import ABSENT, FROZEN
from leadline.watching.roster import Roster
from leadline.watching.shards import ShardNorms

AXIS = "parameters"
Vectors = dict[str, "array[float]"]


@dataclass(slots=True)
class Reading:
    """Norms of some parameters, to be put in their places."""

    places: list[int]
    norms: ShardNorms
    divisor: float = 1.0


@dataclass(slots=True)
class Gauges:
    """The readings of one step, of all optimisers; numbers may still be on their way from a device."""

    roster: Roster
    gradients: list[Reading] = field(default_factory=list)
    updates: list[Reading] = field(default_factory=list)
    weights: list[Reading] = field(default_factory=list)
    absent: list[int] = field(default_factory=list)
    _before: dict[int, tuple[list[Tensor], list[Tensor]]] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Reading will not wait for a device."""
        return all(each.norms.ready for each in (*self.gradients, *self.updates, *self.weights))

    @torch.no_grad()
    def read_gradients(self, optimizer: Optimizer, divisor: float = 1.0) -> None:
        """Take the norms of all gradients, which may still be multiplied by a loss scale of `divisor`."""
        held = self.roster.held[id(optimizer)]
        felt = [(parameter, parameter.grad) for parameter in held if parameter.grad is not None]
        self.absent += [self._place(each) for each in held if each.grad is None and each.requires_grad]
        places = [self._place(parameter) for parameter, _ in felt]
        self.gradients.append(
            Reading(places, ShardNorms([grad for _, grad in felt if grad is not None]), divisor)
        )

    @torch.no_grad()
    def keep_weights(self, optimizer: Optimizer) -> None:
        """Copy what the step will change; `read_updates` gives the memory back."""
        moving = [parameter for parameter in self.roster.held[id(optimizer)] if parameter.grad is not None]
        self._before[id(optimizer)] = moving, [parameter.detach().clone() for parameter in moving]

    @torch.no_grad()
    def read_updates(self, optimizer: Optimizer) -> None:
        """The norm of what the step changed, and of what it arrived at."""
        if id(optimizer) not in self._before:
            return
        moved, copies = self._before.pop(id(optimizer))
        if not moved:
            return
        places = [self._place(parameter) for parameter in moved]
        now = [parameter.detach() for parameter in moved]
        torch._foreach_sub_(copies, now)
        self.updates.append(Reading(places, ShardNorms(copies)))
        self.weights.append(Reading(places, ShardNorms(now)))

    def _place(self, parameter: Tensor) -> int:
        return self.roster.places[id(parameter)]

    def vectors(self) -> Vectors:
        """One number for each parameter; gradients that did not come are `ABSENT`, those nobody asked for `FROZEN`."""
        found = {}
        for name, readings in (
            ("grad_norm", self.gradients),
            ("update_norm", self.updates),
            ("weight_norm", self.weights),
        ):
            if readings:
                found[name] = self._vector(readings, FROZEN if name == "grad_norm" else ABSENT)
        if "grad_norm" in found:
            for place in self.absent:
                found["grad_norm"][place] = ABSENT
        return found

    def _vector(self, readings: list[Reading], missing: float) -> array[float]:
        values = array("f", [missing]) * len(self.roster.names)
        for reading in readings:
            for place, norm in zip(reading.places, reading.norms.read(), strict=True):
                if norm is not None:
                    values[place] = norm / reading.divisor
        return values
