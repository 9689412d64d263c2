"""A Lightning callback: `Trainer(callbacks=[LeadlineCallback(store="run.leadline")])`.

Lightning runs backward inside `optimizer.step(closure)`. The watch wraps closures, and `on_before_optimizer_step` sees
the gradients before Lightning clips them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer

from leadline.integrations._session import WatchSession
from leadline.integrations.sinks import Sink
from leadline.monitor.arguments import OnAlert
from leadline.monitor.watch import Watch


class LeadlineCallback(Callback):  # type: ignore[misc]  # not followed by mypy, see pyproject.toml
    """Watches `fit`. The watch is available as `.watch` during and after training.

    `store`, `budget`, `every` and `on_alert` are the arguments of `leadline.watch`; with `on_alert="stop"` the trainer
    stops normally. `sinks` are trackers (`leadline.integrations.sinks`) that receive numbers every `push_every` steps;
    `FunctionSink(logger.log_metrics)` turns a Lightning logger into a sink.
    """

    def __init__(
        self,
        *,
        store: str | Path | None = None,
        budget: float = 0.01,
        every: int | None = None,
        on_alert: OnAlert = "log",
        sinks: Sequence[Sink] = (),
        push_every: int = 10,
    ) -> None:
        self._session = WatchSession(
            store=store, budget=budget, every=every, on_alert=on_alert, sinks=sinks, push_every=push_every
        )

    @property
    def watch(self) -> Watch | None:
        """The watch; None before training starts."""
        return self._session.watch

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._session.start(pl_module, trainer.optimizers)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        if self.watch is not None and trainer.gradient_clip_val:
            self.watch.unclipped(_gradient_norm(optimizer))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._session.push():
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._session.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self.watch is not None:
            self.watch.__exit__(type(exception), exception, exception.__traceback__)
        self._session.close()


def _gradient_norm(optimizer: Optimizer) -> torch.Tensor:
    """Return the norm of all gradients that this optimizer is about to use."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    return torch.nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])
