"""The optimizers of a program, and the networks that they train."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from leadline.runner.tape import Tape

# Heuristic: networks that are checked; more are found where a program trains many of them one after the other.
MAX_NETWORKS = 4


class TrainedNetworks:
    """The networks whose steps were checked, or could not be, by the parameters of their optimizers."""

    def __init__(self) -> None:
        self._ids: set[int] = set()
        self._shapes: set[tuple[torch.Size, ...]] = set()

    def add(self, optimizers: Sequence[Optimizer]) -> None:
        for optimizer in optimizers:
            self._ids.update(map(id, parameters_of([optimizer])))
            self._shapes.add(_shapes(optimizer))

    def is_new(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer trains another network, and not a copy of a known one."""
        return (
            len(self._shapes) < MAX_NETWORKS
            and self._is_apart(optimizer)
            and _shapes(optimizer) not in self._shapes
        )

    def is_copy(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer trains a copy of a known network, as inner loops and folds of a validation do."""
        return self._is_apart(optimizer) and _shapes(optimizer) in self._shapes

    def _is_apart(self, optimizer: Optimizer) -> bool:
        return self._ids.isdisjoint(map(id, parameters_of([optimizer])))


def _shapes(optimizer: Optimizer) -> tuple[torch.Size, ...]:
    return tuple(each.shape for each in parameters_of([optimizer]))


def live_optimizers(parameter_ids: Collection[int] | None = None) -> list[Optimizer]:
    """The optimizers of this process, without the wrappers of libraries around them.

    If ids of parameters are given, only those that hold one of them: other loops of the process do not count.
    """
    optimizers = [
        each
        for each in gc.get_objects()
        if issubclass(type(each), Optimizer) and "_optimizer_step_pre_hooks" in vars(each)
    ]
    if parameter_ids is None:
        return optimizers
    return [
        each
        for each in optimizers
        if any(id(parameter) in parameter_ids for group in each.param_groups for parameter in group["params"])
    ]


@contextmanager
def freeze_others(optimizers: Sequence[Optimizer]) -> Iterator[None]:
    """Freeze what only other optimizers train: the gradient of a GAN's generator passes through a discriminator."""
    own = {id(each) for each in parameters_of(optimizers)}
    frozen = [
        parameter
        for parameter in parameters_of(live_optimizers())
        if parameter.requires_grad and parameter.is_leaf and id(parameter) not in own
    ]
    try:
        for parameter in frozen:
            parameter.requires_grad = False
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad = True


def called_modules(tape: Tape, optimizers: Sequence[Optimizer]) -> list[nn.Module]:
    """The modules that the program called and these optimizers train, as it calls them, the largest first."""
    held = {id(each) for each in parameters_of(optimizers)}
    modules = {id(call.called): call.called for call in tape.state.calls if call.called is not None}
    sizes = {
        key: sum(each.numel() for each in module.parameters() if id(each) in held)
        for key, module in modules.items()
    }
    return [modules[key] for key in sorted(sizes, key=lambda key: -sizes[key]) if sizes[key]]


def parameters_of(optimizers: Iterable[Optimizer]) -> Iterator[Tensor]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]


def has_gradient(optimizer: Optimizer) -> bool:
    return any(each.grad is not None for each in parameters_of([optimizer]))
