"""A look at the exits of the blocks: second moments forward and backward, by one hook on a module for each of them.

A trace shows which module returns what the next block reads, or is given it. From then on these two numbers a block
cost some ten microseconds each, where a trace costs hundreds for every op; so the profile over depth is renewed far
more often than the rest of what a trace tells.
"""

from __future__ import annotations

from array import array
from functools import partial
from time import perf_counter
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.utils.hooks import RemovableHandle

from leadline.monitor.layout import NOT_MEASURED, Numbers
from leadline.monitor.norms import Norms, one_norm, read_one
from leadline.records import Profile, Trace
from leadline.tracer.live import is_inside_vmap
from leadline.tracer.values import tensors_in

Measured = tuple[Tensor | Norms, int]
"""A norm, and of how many elements."""
Side = Literal["given", "returned"]


class Seat(NamedTuple):
    """Where an exit can be seen: the module at this path is given it or returns it, as this one of its tensors."""

    path: str
    side: Side
    number: int


class Exits:
    """Armed before a step, it measures the first pass that is made with gradients."""

    def __init__(self) -> None:
        self.inside = 0.0
        """Seconds of ours inside of the pass."""
        self.entered: float | None = None
        """When the first exit was passed since it was armed, by `perf_counter`."""
        self.listening = False
        """Between `arm` and `take`."""
        self._seats: dict[int, tuple[nn.Module, Seat]] = {}
        self._count = 0
        self._hooks: list[Usher] = []
        self._handles: list[RemovableHandle] = []
        self._forward: dict[int, Measured] = {}
        self._backward: dict[int, Measured] = {}
        self._error: Exception | None = None

    @property
    def known(self) -> bool:
        """A trace has shown where they are."""
        return bool(self._seats)

    def learn(self, model: nn.Module, seen: Trace, profile: Profile) -> None:
        """Where the exits are, from a trace of the model and what was read off it."""
        modules = dict(model.named_modules())
        seats = seats_of(seen, profile).items()
        self._seats = {place: (modules[seat.path], seat) for place, seat in seats if seat.path in modules}
        self._count = len(profile.blocks)

    def arm(self) -> None:
        """Hook the modules, if they are not hooked still; `disarm` takes the hooks off again."""
        self.inside, self.entered, self._forward, self._backward = 0.0, None, {}, {}
        self.listening = True
        if not self._handles:
            for place, (module, seat) in self._seats.items():
                usher = Usher(self, place, seat.number)
                self._hooks.append(usher)
                given = seat.side == "given"
                hook = module.register_forward_pre_hook if given else module.register_forward_hook
                self._handles.append(hook(usher))

    def disarm(self) -> None:
        self.listening = False
        for usher in self._hooks:
            usher.exits = None
        for handle in self._handles:
            handle.remove()
        self._hooks, self._handles = [], []

    def take(self, loss_scale: float = 1.0) -> Glance:
        """What was seen; call it when gradients are there, which may still be multiplied by a loss scale."""
        self.listening = False
        error, self._error = self._error, None
        if error is not None:
            raise error
        return Glance(self._count, self._forward, self._backward, loss_scale)

    def look(self, place: int, passed: Any, number: int) -> None:
        """Measure the value with this number among those that pass here first, and wait for its gradient."""
        if not self.listening or place in self._forward or not torch.is_grad_enabled() or is_inside_vmap():
            return
        start = perf_counter()
        self.entered = self.entered or start
        try:
            found = tensors_in(passed)  # may hold less than in the pass that was traced
            value = found[number] if number < len(found) else None
            if value is not None and value.is_floating_point():
                self._forward[place] = (one_norm(value.detach()), value.numel())
                if value.grad_fn is not None:
                    value.grad_fn.register_prehook(partial(self._arrived, place, value.output_nr))
        except Exception as error:  # ours: it must not end the user's pass
            self._error = error
        self.inside += perf_counter() - start

    def _arrived(self, place: int, number: int, grads: tuple[Tensor | None, ...]) -> None:
        grad = grads[number]
        if grad is None or place in self._backward or not self.listening:
            return
        start = perf_counter()
        try:
            self._backward[place] = (one_norm(grad.detach()), grad.numel())
        except Exception as error:
            self._error = error
        self.inside += perf_counter() - start


class Usher:
    """The hook of one seat, before or after the module. Copies and pickles of it lead nowhere, as those of a `Doorway`.

    It is not there for the compiler, as a `Passage`; it is neither of the two itself, as they add calls within calls,
    and this one is called once a block and step.
    """

    __slots__ = ("exits", "number", "place")

    def __init__(self, exits: Exits | None = None, place: int = 0, number: int = 0) -> None:
        self.exits, self.place, self.number = exits, place, number

    def __call__(self, module: nn.Module, args: tuple[Any, ...], *output: Any) -> None:
        if not is_compiling() and self.exits is not None:
            self.exits.look(self.place, output[0] if output else args, self.number)

    def __deepcopy__(self, memo: dict[int, Any]) -> Usher:
        return Usher()

    def __copy__(self) -> Usher:
        return Usher()

    def __reduce__(self) -> tuple[type[Usher], tuple[()]]:
        return Usher, ()


class Glance:
    """Second moments of one pass, by block; perhaps still on a device."""

    def __init__(
        self, count: int, forward: dict[int, Measured], backward: dict[int, Measured], loss_scale: float
    ) -> None:
        self._count, self._loss_scale = count, loss_scale
        self._sides = {"forward_ms": forward, "backward_ms": backward}

    @property
    def ready(self) -> bool:
        """Reading will not wait for a device."""
        norms = [norm for side in self._sides.values() for norm, _ in side.values()]
        return all(norm.is_cpu if isinstance(norm, Tensor) else norm.ready for norm in norms)

    def numbers(self) -> Numbers:
        """As a trace has them. Empty if no exit was passed."""
        found = {}
        for (name, side), scale in zip(self._sides.items(), (1.0, self._loss_scale), strict=True):
            if side:
                found[name] = array("f", [NOT_MEASURED]) * self._count
                for place, (norm, elements) in side.items():
                    length = read_one(norm)
                    if length is not None and elements:
                        found[name][place] = (length / scale) ** 2 / elements
        return found


def seats_of(seen: Trace, profile: Profile) -> dict[int, Seat]:
    """By the block's place, where its exit can be seen.

    A block that begins and ends inside of modules, or in one that the pass called several times, has no seat.
    """
    once = [module for module in seen.modules if module.calls == 1]
    seats: dict[int | None, Seat] = {}
    for module in once:
        seats |= {value: Seat(module.path, "given", number) for number, value in enumerate(module.given)}
    for module in once:
        seats |= {
            value: Seat(module.path, "returned", number) for number, value in enumerate(module.returned)
        }
    return {place: seats[block.exit] for place, block in enumerate(profile.blocks) if block.exit in seats}
