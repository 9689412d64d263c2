"""The parameters that are watched: one place on the axis "parameters" for each, in the model's order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

from leadline.tracing.census import take_census
from leadline.tracing.lend import unwrap
from leadline.watching.norms import is_simple


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
    named = take_census(unwrap(model)).parameters
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
