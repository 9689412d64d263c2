"""What one step of an optimiser shows of every parameter: its gradient, its size, and how far it moved."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from leadline.alarms.history import ABSENT, FROZEN, UNHELD
from leadline.watching.norms import total
from leadline.watching.roster import Roster
from leadline.watching.shards import ShardNorms, local

AXIS = "parameters"
Vectors = dict[str, "array[float]"]


@dataclass(slots=True)
class Reading:
    """Norms of some parameters, to be put in their places."""

    places: list[int]
    norms: ShardNorms
    divisor: float = 1.0

    def whole(self, size: int) -> list[float] | None:
        """One number for each place, in order, to be taken as it is: by far the usual case."""
        if len(self.places) != size or self.divisor != 1.0 or self.places != list(range(size)):
            return None
        found = self.norms.read()
        return None if None in found else cast(list[float], found)


@dataclass(slots=True)
class Gauges:
    """The readings of one step, of all optimisers; numbers may still be on their way from a device."""

    roster: Roster
    gradients: list[Reading] = field(default_factory=list)
    updates: list[Reading] = field(default_factory=list)
    weights: list[Reading] = field(default_factory=list)
    absent: list[int] = field(default_factory=list)
    _before: dict[int, list[Tensor]] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Reading will not wait for a device."""
        return all(each.norms.ready for each in (*self.gradients, *self.updates, *self.weights))

    @torch.no_grad()
    def read_gradients(self, optimizer: Optimizer, divisor: float = 1.0) -> None:
        """Take the norms of all gradients, which may still be multiplied by a loss scale of `divisor`."""
        held, places = self.roster.held[id(optimizer)], self.roster.spots[id(optimizer)]
        grads = [parameter.grad for parameter in held]
        felt = [grad for grad in grads if grad is not None]
        if len(felt) < len(grads):
            missing = [place for place, grad in zip(places, grads, strict=True) if grad is None]
            asked = {place for place, each in zip(places, held, strict=True) if each.requires_grad}
            self.absent += [place for place in missing if place in asked]
            places = [place for place, grad in zip(places, grads, strict=True) if grad is not None]
        simple = self.roster.simple and all(grad.layout is torch.strided for grad in felt)
        self.gradients.append(Reading(places, ShardNorms(felt, simple=simple), divisor))

    @torch.no_grad()
    def keep_weights(self, optimizer: Optimizer) -> None:
        """Copy what the step will change; `read_updates` gives the memory back."""
        held = [each.detach() for each in self.roster.held[id(optimizer)]]
        self._before[id(optimizer)] = [each.clone() for each in local(held, simple=self.roster.simple)]

    @torch.no_grad()
    def read_updates(self, optimizer: Optimizer) -> None:
        """The norm of what the step changed, and of what it arrived at."""
        copies = self._before.pop(id(optimizer), None)
        if not copies:
            return
        places, simple = self.roster.spots[id(optimizer)], self.roster.simple
        held = [parameter.detach() for parameter in self.roster.held[id(optimizer)]]
        now = local(held, simple=simple)
        torch._foreach_sub_(copies, now)
        self.updates.append(Reading(places, ShardNorms(held, copies, simple=simple)))
        self.weights.append(Reading(places, ShardNorms(held, now, simple=simple)))

    def latest_norm(self) -> float:
        """Of all gradients that were read last; waits for a device."""
        reading = self.gradients[-1]
        return total([norm / reading.divisor for norm in reading.norms.read() if norm is not None])

    def gradient_norms(self) -> dict[str, float]:
        """Those that were read, by name."""
        return dict(zip(self.roster.names, self.vectors().get("grad_norm", ()), strict=False))

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
            for place in self.roster.unheld:
                found["grad_norm"][place] = UNHELD
            for place in self.absent:
                found["grad_norm"][place] = ABSENT
        return found

    def _vector(self, readings: list[Reading], missing: float) -> array[float]:
        whole = readings[0].whole(len(self.roster.names)) if len(readings) == 1 else None
        if whole is not None:
            return array("f", whole)
        values = array("f", [missing]) * len(self.roster.names)
        for reading in readings:
            for place, norm in zip(reading.places, reading.norms.read(), strict=True):
                if norm is not None:
                    values[place] = norm / reading.divisor
        return values
