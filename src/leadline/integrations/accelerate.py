"""A watch of what an Accelerator prepared: `with watch(accelerator, model, optimizer, store="run.leadline") as w:`.

An Accelerator wraps the optimiser; what steps, and what has the hooks, is the one inside.
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


def watch(  # noqa: PLR0913  (leadline.watch, with an accelerator before it)
    accelerator: Any,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    store: str | Path | None = None,
    budget: float = 0.01,
    every: int | None = None,
    on_alert: OnAlert = "log",
) -> Watch:
    """`leadline.watch` for a model and optimisers as `accelerator.prepare` returned them."""
    found = optimizer if isinstance(optimizer, Sequence) else [optimizer]
    return start_watch(
        accelerator.unwrap_model(model),
        [bare_optimizer(each) for each in found],
        store=store,
        budget=budget,
        every=every,
        on_alert=on_alert,
    )


def tracker_sink(accelerator: Any) -> FunctionSink:
    """The accelerator's own trackers (`Accelerator(log_with=...)`) as a sink."""
    return FunctionSink(lambda values, step: accelerator.log(values, step=step))


def bare_optimizer(optimizer: Any) -> Optimizer:
    """The optimiser inside an AcceleratedOptimizer; any other as it is."""
    while type(optimizer).__module__.startswith("accelerate.") and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer  # type: ignore[no-any-return]  # an optimiser all the way down
