"""Second moments at the exits of the blocks, forward and backward, measured by one module hook per block.

A trace shows which module returns, or receives, the value that the next block reads. From then on two numbers per
block cost about ten microseconds each, where a trace costs hundreds per op. So the profile over depth is measured far
more often than the rest of a trace.
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

from leadline.checks._history import NOT_MEASURED
from leadline.monitor.hooks import takes_hooks
from leadline.monitor.layout import Numbers
from leadline.monitor.norms import Norms, one_norm, read_one
from leadline.records import Profile, Trace
from leadline.tracer.live import is_inside_vmap
from leadline.tracer.values import tensors_in

NormAndSize = tuple[Tensor | Norms, int]
"""A norm, and the number of elements it was taken over."""
Side = Literal["given", "returned"]


class ExitLocation(NamedTuple):
    """Where a block's exit is visible: an argument or result of the module at `path`, as its n-th tensor."""

    path: str
    side: Side
    number: int


class BlockExits:
    """When armed before a step, measures the first pass that is made with gradients."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Seconds that the measurement took inside the pass."""
        self.pass_start: float | None = None
        """Time of the first exit since it was armed, by `perf_counter`."""
        self.is_measuring = False
        """True between `arm` and `take`."""
        self._locations: dict[int, tuple[nn.Module, ExitLocation]] = {}
        self._block_count = 0
        self._hooks: list[BlockExitHook] = []
        self._handles: list[RemovableHandle] = []
        self._forward: dict[int, NormAndSize] = {}
        self._backward: dict[int, NormAndSize] = {}
        self._error: Exception | None = None

    @property
    def is_located(self) -> bool:
        """True once a trace has shown where the exits are."""
        return bool(self._locations)

    def locate(self, model: nn.Module, trace: Trace, profile: Profile) -> None:
        """Find the exits from a trace of the model and its profile."""
        modules = dict(model.named_modules())
        locations = exit_locations(trace, profile).items()
        self._locations = {
            block: (modules[location.path], location)
            for block, location in locations
            if location.path in modules and takes_hooks(modules[location.path])
        }
        self._block_count = len(profile.blocks)

    def arm(self) -> None:
        """Hook the modules, unless they are still hooked; `disarm` removes the hooks."""
        self.seconds, self.pass_start, self._forward, self._backward = 0.0, None, {}, {}
        self.is_measuring = True
        if not self._handles:
            for block, (module, location) in self._locations.items():
                hook = BlockExitHook(self, block, location.number)
                self._hooks.append(hook)
                is_argument = location.side == "given"
                register = module.register_forward_pre_hook if is_argument else module.register_forward_hook
                self._handles.append(register(hook))

    def disarm(self) -> None:
        self.is_measuring = False
        for hook in self._hooks:
            hook.exits = None
        for handle in self._handles:
            handle.remove()
        self._hooks, self._handles = [], []

    def take(self, loss_scale: float = 1.0) -> BlockMoments:
        """Return the measurement. Call it when the gradients exist; they may still carry the loss scale."""
        self.is_measuring = False
        error, self._error = self._error, None
        if error is not None:
            raise error
        return BlockMoments(self._block_count, self._forward, self._backward, loss_scale)

    def measure(self, block: int, values: Any, number: int) -> None:
        """Measure the n-th tensor of the first call in this pass, and hook its gradient."""
        if not self.is_measuring or block in self._forward or not torch.is_grad_enabled() or is_inside_vmap():
            return
        start = perf_counter()
        self.pass_start = self.pass_start or start
        try:
            tensors = tensors_in(values)  # may hold fewer than in the traced pass
            value = tensors[number] if number < len(tensors) else None
            if value is not None and value.is_floating_point():
                self._forward[block] = (one_norm(value.detach()), value.numel())
                if value.grad_fn is not None:
                    value.grad_fn.register_prehook(partial(self._measure_gradient, block, value.output_nr))
        except Exception as error:  # an error of the watch must not end the user's pass
            self._error = error
        self.seconds += perf_counter() - start

    def _measure_gradient(self, block: int, number: int, grads: tuple[Tensor | None, ...]) -> None:
        grad = grads[number]
        if grad is None or block in self._backward or not self.is_measuring:
            return
        start = perf_counter()
        try:
            self._backward[block] = (one_norm(grad.detach()), grad.numel())
        except Exception as error:
            self._error = error
        self.seconds += perf_counter() - start


class BlockExitHook:
    """Forward hook or pre-hook that measures one block's output. Its copies and pickles do nothing.

    It behaves like an `EagerHook` of a `DetachableHook`, but uses neither: they add nested calls, and this hook runs
    once per block and step.
    """

    __slots__ = ("block", "exits", "number")

    def __init__(self, exits: BlockExits | None = None, block: int = 0, number: int = 0) -> None:
        self.exits, self.block, self.number = exits, block, number

    def __call__(self, module: nn.Module, args: tuple[Any, ...], *output: Any) -> None:
        if not is_compiling() and self.exits is not None:
            self.exits.measure(self.block, output[0] if output else args, self.number)

    def __deepcopy__(self, memo: dict[int, Any]) -> BlockExitHook:
        return BlockExitHook()

    def __copy__(self) -> BlockExitHook:
        return BlockExitHook()

    def __reduce__(self) -> tuple[type[BlockExitHook], tuple[()]]:
        return BlockExitHook, ()


class BlockMoments:
    """Second moments of one pass by block, possibly still on a device."""

    def __init__(
        self,
        block_count: int,
        forward: dict[int, NormAndSize],
        backward: dict[int, NormAndSize],
        loss_scale: float,
    ) -> None:
        self._block_count, self._loss_scale = block_count, loss_scale
        self._directions = {"forward_ms": forward, "backward_ms": backward}

    def norms(self) -> list[Norms]:
        """All norms that may still be on a device."""
        norms = [norm for measured in self._directions.values() for norm, _ in measured.values()]
        return [each for each in norms if isinstance(each, Norms)]

    def numbers(self) -> Numbers:
        """Return the moments as a trace has them; empty if no exit was passed."""
        numbers = {}
        for (name, measured), scale in zip(self._directions.items(), (1.0, self._loss_scale), strict=True):
            if measured:
                numbers[name] = array("f", [NOT_MEASURED]) * self._block_count
                for block, (norm, elements) in measured.items():
                    length = read_one(norm)
                    if length is not None and elements:
                        numbers[name][block] = (length / scale) ** 2 / elements
        return numbers


def exit_locations(trace: Trace, profile: Profile) -> dict[int, ExitLocation]:
    """Return, by block index, where the block's exit is visible.

    A block that begins and ends inside a module, or in a module that the pass called several times, has no location.
    """
    called_once = [module for module in trace.modules if module.calls == 1]
    locations: dict[int | None, ExitLocation] = {}
    for module in called_once:
        locations |= {
            value: ExitLocation(module.path, "given", number) for number, value in enumerate(module.given)
        }
    for module in called_once:
        locations |= {
            value: ExitLocation(module.path, "returned", number)
            for number, value in enumerate(module.returned)
        }
    return {
        index: locations[block.exit] for index, block in enumerate(profile.blocks) if block.exit in locations
    }
