"""Where the program calls `backward` and `step` and builds its optimizer: file and line, from the stack of the call."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from leadline.monitor.loop_calls import LoopListener, subscribe
from leadline.records import Source
from leadline.runner.program import ProgramStop
from leadline.tracer.restore import is_own_work
from leadline.tracer.sources import CallSites, repository_root

LoopLines = dict[str, tuple[Source, ...]]
"""By what is called, "the loss", "the step" or "the optimizer", the lines that call it, in the order of time."""


class LoopPlaces(LoopListener):
    """Records the lines of the user's files from which the loop is driven."""

    def __init__(self) -> None:
        self.lines: LoopLines = {}
        self._sites = CallSites(repository_root(), frozenset())
        self._subscription = subscribe(self)

    def before_backward(self, roots: tuple[Tensor, ...]) -> None:
        self._add("the loss")

    def before_step(self, optimizer: Optimizer) -> None:
        self._add("the step")

    def built(self, optimizer: Optimizer) -> None:
        self._add("the optimizer")

    def _add(self, what: str) -> None:
        place = self._sites.here()
        known = self.lines.get(what, ())
        if place is not None and place not in known:
            self.lines[what] = (*known, place)

    def close(self) -> None:
        self._subscription.close()


class StepLimit:
    """Stops the program before the step that would exceed the limit. Steps of Leadline itself do not count."""

    def __init__(self, steps: int) -> None:
        self.limit, self.steps = steps, 0
        self._hook = register_optimizer_step_pre_hook(self._count)

    def _count(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if is_own_work():
            return
        if self.steps >= self.limit:
            raise ProgramStop(0)
        self.steps += 1

    def close(self) -> None:
        self._hook.remove()
