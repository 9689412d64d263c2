"""A training loop that runs one step at a time, with or without a monitor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import monitors
from leadline import Case


class Loop:
    """Fused AdamW with a rate so small that the network hardly changes."""

    def __init__(self, build: Callable[[], Case]) -> None:
        self.case = build()
        self.optimizer = torch.optim.AdamW(self.case.model.parameters(), lr=1e-5, fused=True)
        self.monitor: monitors.ActiveMonitor | None = None

    def attach(self, monitor: monitors.Monitor, folder: Path) -> None:
        self.monitor = monitor(self.case.model, self.optimizer, folder)

    def step(self) -> None:
        monitor = self.monitor
        if monitor is not None and hasattr(monitor, "step"):
            monitor.step(self.case)
            return
        loss = self.case.loss(self.case.model(self.case.inputs), self.case.targets)
        if monitor is not None:
            monitor.loss(loss)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if monitor is not None:
            monitor.end()

    def close(self) -> None:
        """Remove the monitor; the loop can continue without it."""
        if self.monitor is not None:
            self.monitor.close()
            self.monitor = None
