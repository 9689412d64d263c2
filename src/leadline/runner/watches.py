"""The watches of a program: one for each kind of step, such as the two of a GAN, which share one budget."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from leadline.monitor.learning import MIN_STUCK_STEPS
from leadline.monitor.watch import Watch, start_watch
from leadline.records.run import Alert
from leadline.runner.optimizers import MAX_NETWORKS, parameters_of
from leadline.tracer.restore import preserve_process_state


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """How the steps of a program are watched."""

    store: Path | None = None
    budget: float = 0.01
    every: int | None = None


@dataclass(frozen=True, slots=True)
class _PlannedWatch:
    """A watch that starts when the step that is being checked has ended."""

    model: nn.Module
    optimizers: tuple[Optimizer, ...]
    loss: float | None
    refuted: set[str] = field(default_factory=set)
    """Codes of checks whose findings trial steps have refuted."""


class ProgramWatches:
    """Starts a watch after the first step of each kind that was found, and closes them all."""

    def __init__(self, settings: WatchSettings, on_alert: Callable[[Alert], None]) -> None:
        self._started: list[tuple[tuple[Optimizer, ...], Watch]] = []
        self.trouble = ""
        """Why steps are not watched; "" if they are."""
        self._settings, self._on_alert = settings, on_alert
        self._plans: list[_PlannedWatch] = []
        self._parameters: set[int] = set()
        """Ids of the parameters that are watched, or will be."""

    @property
    def watches(self) -> list[Watch]:
        return [watch for _, watch in self._started]

    def plan(self, model: nn.Module, optimizers: Sequence[Optimizer], loss: float | None) -> None:
        """Watch these optimizers after the step that they make now; `loss` is the one of this step."""
        ids = set(map(id, parameters_of(optimizers)))
        count = len(self.watches) + len(self._plans)
        if count < MAX_NETWORKS and self._parameters.isdisjoint(ids):
            self._parameters |= ids
            self._plans.append(_PlannedWatch(model, tuple(optimizers), loss))

    def refute(self, optimizers: Sequence[Optimizer], codes: Collection[str]) -> None:
        """Raise only other findings in the first steps of these optimizers: trial steps have refuted these checks."""
        for plan in self._plans:
            if plan.optimizers == tuple(optimizers):
                plan.refuted.clear()
                plan.refuted.update(codes)
        for started, watch in self._started:
            if started == tuple(optimizers):
                watch.refute(codes, MIN_STUCK_STEPS)

    def start_after(self, optimizer: Optimizer) -> None:
        """Start the watch that waits for the end of a step of this optimizer, if one does."""
        for plan in [each for each in self._plans if each.optimizers[-1] is optimizer]:
            self._plans.remove(plan)
            try:
                with preserve_process_state():
                    self._start(plan)
            except Exception as error:
                self.trouble = f"the steps are not watched: {type(error).__name__}: {error}"

    def _start(self, plan: _PlannedWatch) -> None:
        settings = self._settings
        watch = start_watch(
            plan.model,
            plan.optimizers,
            store=self._store(len(self.watches) + 1),
            budget=settings.budget,
            every=settings.every,
            on_alert=self._on_alert,
        )
        if plan.loss is not None:
            watch.add_past_step(plan.loss)
        watch.refute(plan.refuted, MIN_STUCK_STEPS)
        self._started.append((plan.optimizers, watch))
        for each in self.watches:
            each.budget = settings.budget / len(self.watches)

    def _store(self, number: int) -> Path | None:
        """The run file of the n-th watch: run.leadline, run-2.leadline and so on."""
        store = self._settings.store
        return store if store is None or number == 1 else store.with_stem(f"{store.stem}-{number}")

    def close(self, error: BaseException | None) -> None:
        for watch in self.watches:
            kind: Any = None if error is None else type(error)
            watch.__exit__(kind, error, None)
