"""A look at the exits of the blocks: second moments forward and backward, by one hook on a module for each of them.

A trace shows which module returns what the next block reads, or is given it. From then on these two numbers a block
cost some ten microseconds each, where a trace costs hundreds for every op; so the profile over depth is renewed far
more often than the rest of what a trace tells.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from leadline.records import Op, Profile, Trace
from leadline.watching.blocks import NOT_MEASURED, Numbers
from leadline.watching.doorway import Doorway
from leadline.watching.norms import Norms, one_norm, read_one

Measured = tuple[Tensor | Norms, int]
"""A norm, and of how many elements."""
Side = Literal["given", "returned"]
Seat = tuple[str, Side]
"""Where an exit can be seen: the path of a module, and whether it is given the value or returns it."""


class Exits:
    """Armed before a step, it measures the first pass that is made with gradients."""

    def __init__(self) -> None:
        self.inside = 0.0
        """Seconds of ours inside of the pass."""
        self._seats: dict[int, tuple[nn.Module, Side]] = {}
        self._places: dict[tuple[int, Side], int] = {}
        self._count = 0
        self._doors: list[Doorway] = []
        self._handles: list[RemovableHandle] = []
        self._forward: dict[int, Measured] = {}
        self._backward: dict[int, Measured] = {}
        self._error: Exception | None = None

    @property
    def known(self) -> bool:
        """A trace has shown where they are."""
        return bool(self._seats)

    @property
    def armed(self) -> bool:
        return bool(self._handles)

    def learn(self, model: nn.Module, seen: Trace, profile: Profile) -> None:
        """Where the exits are, from a trace of the model and what was read off it."""
        modules = dict(model.named_modules())
        seats = {place: seat for place, seat in seats_of(seen, profile).items() if seat[0] in modules}
        self._seats = {place: (modules[path], side) for place, (path, side) in seats.items()}
        self._places = {(id(module), side): place for place, (module, side) in self._seats.items()}
        self._count = len(profile.blocks)

    def arm(self) -> None:
        """Hook the modules; `disarm` takes the hooks off again."""
        self.inside, self._forward, self._backward = 0.0, {}, {}
        given, returned = Doorway(self._given), Doorway(self._returned)
        self._doors = [given, returned]
        self._handles = [
            module.register_forward_pre_hook(given)
            if side == "given"
            else module.register_forward_hook(returned)
            for module, side in self._seats.values()
        ]

    def disarm(self) -> None:
        for door in self._doors:
            door.shut()
        for handle in self._handles:
            handle.remove()
        self._doors, self._handles = [], []

    def take(self, loss_scale: float = 1.0) -> Glance:
        """What was seen; call it when gradients are there, which may still be multiplied by a loss scale."""
        self.disarm()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return Glance(self._count, self._forward, self._backward, loss_scale)

    def _given(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if args:
            self._look(self._places.get((id(module), "given")), args[0])

    def _returned(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._look(self._places.get((id(module), "returned")), output)

    def _look(self, place: int | None, value: Any) -> None:
        """Measure the first value that passes here, and wait for its gradient."""
        start = perf_counter()
        if place is None or place in self._forward or not torch.is_grad_enabled():
            return
        try:
            if isinstance(value, Tensor) and value.is_floating_point():
                self._forward[place] = (one_norm(value.detach()), value.numel())
                if value.grad_fn is not None:
                    value.grad_fn.register_prehook(partial(self._arrived, place, value.output_nr))
        except Exception as error:  # ours: it must not end the user's pass
            self._error = error
        self.inside += perf_counter() - start

    def _arrived(self, place: int, number: int, grads: tuple[Tensor | None, ...]) -> None:
        start, grad = perf_counter(), grads[number]
        if grad is None or place in self._backward or not self.armed:
            return
        try:
            self._backward[place] = (one_norm(grad.detach()), grad.numel())
        except Exception as error:
            self._error = error
        self.inside += perf_counter() - start


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

    A module returns what its last op made, and is given what its first op reads first. A block that begins and ends
    inside of modules, or in one that the pass called several times, has no seat.
    """
    forward = [op for op in seen.ops if op.phase == "forward"]
    first, last = _first_and_last(forward)
    once = {module.path for module in seen.modules if module.calls == 1}
    found: dict[int, Seat] = {}
    returned = {
        op.outputs[0]: op.module for op in forward if last[op.module] == op.index and op.module in once
    }
    given = {
        op.inputs[0]: op.module
        for op in forward
        if op.inputs and first[op.module] == op.index and op.module in once
    }
    for place, block in enumerate(profile.blocks):
        if block.exit in returned:
            found[place] = (returned[block.exit], "returned")
        elif block.exit in given:
            found[place] = (given[block.exit], "given")
    return found


def _first_and_last(ops: Sequence[Op]) -> tuple[dict[str, int], dict[str, int]]:
    """Of each module, the index of the first op and of the last one that ran inside of it."""
    last = {path: op.index for op in ops for path in _around(op.module)}
    first = {path: op.index for op in reversed(ops) for path in _around(op.module)}
    return first, last


def _around(path: str) -> list[str]:
    """The path itself, and those of the modules around it."""
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)] + ([""] if path else [])
