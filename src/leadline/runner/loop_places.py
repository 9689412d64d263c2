"""Where the program calls its model, `backward` and `step` and builds its optimizer: file and line, from the stack."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from leadline.monitor.loop_calls import subscribe
from leadline.monitor.loop_listener import LoopListener
from leadline.records import Source
from leadline.runner.program import ProgramStop
from leadline.tracer.restore import is_own_work
from leadline.tracer.sources import CallSites, repository_root

LoopLines = dict[str, tuple[Source, ...]]
"""By what is called, "the model", "the loss", "the step" or "the optimizer", the lines that call it, in their order."""


class LoopPlaces(LoopListener):
    """Records the lines of the user's files from which the loop is driven; those that call modules up to a step."""

    resting_events = frozenset(("before_backward", "before_step", "built"))

    def __init__(self) -> None:
        self.lines: LoopLines = {}
        self._sites = CallSites(repository_root(), frozenset())
        self._subscription = subscribe(self)

    def before_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            self._add("the model")

    def before_backward(self, roots: tuple[Tensor, ...]) -> None:
        self._add("the loss")

    def before_step(self, optimizer: Optimizer) -> None:
        self._add("the step")
        if not self.is_resting:
            self.rest()

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
