"""A watch for what an Accelerator prepared: `with watch(accelerator, model, optimizer, store="run.leadline") as w:`.

An Accelerator wraps the optimizer. The wrapped optimizer is the one that steps and carries the hooks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from leadline.integrations.sinks import FunctionSink
from leadline.monitor.arguments import OnAlert
from leadline.monitor.watch import Watch, start_watch


def watch(  # noqa: PLR0913  (leadline.watch, preceded by the accelerator)
    accelerator: Any,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    store: str | Path | None = None,
    budget: float = 0.01,
    every: int | None = None,
    on_alert: OnAlert = "log",
) -> Watch:
    """Start `leadline.watch` for a model and optimizers that `accelerator.prepare` returned."""
    optimizers = optimizer if isinstance(optimizer, Sequence) else [optimizer]
    return start_watch(
        accelerator.unwrap_model(model),
        [unwrap_optimizer(each) for each in optimizers],
        store=store,
        budget=budget,
        every=every,
        on_alert=on_alert,
    )


def tracker_sink(accelerator: Any) -> FunctionSink:
    """Return a sink that logs to the accelerator's own trackers (`Accelerator(log_with=...)`)."""
    return FunctionSink(lambda values, step: accelerator.log(values, step=step))


def unwrap_optimizer(optimizer: Any) -> Optimizer:
    """Return the optimizer inside an AcceleratedOptimizer, or the optimizer itself if it is not wrapped."""
    while type(optimizer).__module__.startswith("accelerate.") and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer  # type: ignore[no-any-return]  # every layer is an optimizer
