"""The watched parameters, and what one optimizer step shows of each: gradient, size and update."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from leadline.checks._history import ABSENT, FROZEN, NOT_OPTIMIZED
from leadline.monitor.norms import ShardNorms, is_simple, local, total
from leadline.tracer.inputs import unwrap
from leadline.tracer.names import index_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """Names and places. What an optimiser holds and the model does not (a learnable temperature) comes last."""

    names: tuple[str, ...]
    places: dict[int, int]
    """Place by identity of the parameter."""
    held: dict[int, list[Tensor]]
    """What each optimiser holds, by identity of the optimiser."""
    spots: dict[int, list[int]]
    """The places of what each optimiser holds."""
    unheld: tuple[int, ...]
    """Places of parameters that require a gradient and that no optimiser holds."""
    simple: bool
    """All of them are plain tensors of one kind, for which norms are taken without a look at each."""

    def is_current(self, optimizer: Optimizer) -> bool:
        """False if the optimiser got a group, or a parameter was replaced, since the roster was made."""
        known = self.held.get(id(optimizer), [])
        now = _held(optimizer)
        return len(now) == len(known) and all(a is b for a, b in zip(now, known, strict=True))

    def used_up(self, stepped: Iterable[int]) -> set[int]:
        """Parameters, by identity, whose gradient is gone since these optimisers have stepped."""
        held = (each for key in stepped for each in self.held.get(key, ()))
        return {id(each) for each in held if each.requires_grad and each.grad is None}


def make_roster(model: nn.Module, optimizers: Iterable[Optimizer]) -> Roster:
    """Names are those of the user's own module, inside of wrappers, as a trace has them."""
    named = index_model(unwrap(model)).parameters
    names = [each.names[0] for each in named.values()]
    places = {key: place for place, key in enumerate(named)}
    held = {id(each): _held(each) for each in optimizers}
    for parameters in held.values():
        for parameter in parameters:
            if id(parameter) not in places:
                places[id(parameter)] = len(names)
                names.append(f"outside the model, {tuple(parameter.shape)}, {len(names)}")
    spots = {key: [places[id(each)] for each in parameters] for key, parameters in held.items()}
    taken = {place for found in spots.values() for place in found}
    unheld = tuple(
        place for place, each in enumerate(named.values()) if each.item.requires_grad and place not in taken
    )
    simple = all(is_simple(each) for parameters in held.values() for each in parameters)
    return Roster(names=tuple(names), places=places, held=held, spots=spots, unheld=unheld, simple=simple)


def _held(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def highest_rate(optimizers: Sequence[Optimizer]) -> float | None:
    """The largest learning rate of all groups; None if no group has one."""
    found = [group["lr"] for each in optimizers for group in each.param_groups if group.get("lr") is not None]
    return float(max(found)) if found else None


# What one step of an optimiser shows of every parameter: its gradient, its size, and how far it moved.

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
                found["grad_norm"][place] = NOT_OPTIMIZED
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
