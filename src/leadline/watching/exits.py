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
        self.listening = False
        """Between `arm` and `take`."""
        self._seats: dict[int, tuple[nn.Module, Side]] = {}
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
        seats = {place: seat for place, seat in seats_of(seen, profile).items() if seat[0] in modules}
        self._seats = {place: (modules[path], side) for place, (path, side) in seats.items()}
        self._count = len(profile.blocks)

    def arm(self) -> None:
        """Hook the modules, if they are not hooked still; `disarm` takes the hooks off again."""
        self.inside, self._forward, self._backward = 0.0, {}, {}
        self.listening = True
        if not self._handles:
            for place, (module, side) in self._seats.items():
                usher = Usher(self, place, side)
                self._hooks.append(usher)
                hook = module.register_forward_pre_hook if side == "given" else module.register_forward_hook
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

    def look(self, place: int, value: Any) -> None:
        """Measure the first value that passes here, and wait for its gradient."""
        if not self.listening or place in self._forward or not torch.is_grad_enabled():
            return
        start = perf_counter()
        try:
            if isinstance(value, Tensor) and value.is_floating_point():
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
    """The hook of one seat. Copies and pickles of it lead nowhere, as those of a `Doorway`; it is called once a block
    and step, so it does without a frame of its own for that."""

    __slots__ = ("exits", "place", "side")

    def __init__(self, exits: Exits | None = None, place: int = 0, side: Side = "returned") -> None:
        self.exits, self.place, self.side = exits, place, side

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any = None) -> None:
        if self.exits is not None:
            self.exits.look(self.place, output if self.side == "returned" else args[0] if args else None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Usher:
        return Usher()

    def __copy__(self) -> Usher:
        return Usher()

    def __reduce__(self) -> tuple[type[Usher], tuple[()]]:
        return Usher, ()


Usher.__call__._torchdynamo_disable = True  # type: ignore[attr-defined]  # as a Doorway's


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
