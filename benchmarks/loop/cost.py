"""Measure what following a loop costs per step, in microseconds.

    python -m benchmarks.loop.cost

Three loops are timed alone, with an idle listener, and with the loop ledger: steps of the variants take turns, so that
the state of the machine is the same for all, and the median difference counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from leadline.monitor.loop_calls import LoopListener, subscribe
from leadline.monitor.loop_ledger import LoopLedger

ROUNDS = 40
STEPS = 50


class _Idle(LoopListener):
    """Overrides every method that the ledger does, and does nothing."""


for _name, _method in vars(LoopLedger).items():
    if _name in vars(LoopListener) and callable(_method) and not _name.startswith("_"):
        setattr(_Idle, _name, lambda self, *args: None)


def _stack(layers: int, width: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)))


def _seconds(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> float:
    start = time.perf_counter()
    for _ in range(STEPS):
        x = x.roll(1, 0)
        optimizer.zero_grad()
        F.mse_loss(model(x), x).backward()
        optimizer.step()
    return (time.perf_counter() - start) / STEPS


def measure(layers: int, width: int) -> dict[str, float]:
    """Return microseconds per step: of the loop alone, and added by each listener."""
    model = _stack(layers, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(16, width)
    listeners: dict[str, Callable[[], LoopListener]] = {
        "idle": _Idle,
        "ledger": lambda: LoopLedger([optimizer]),
    }
    held = {name: make() for name, make in listeners.items()}
    times: dict[str, list[float]] = {"alone": [], **{name: [] for name in listeners}}
    for _ in range(ROUNDS):
        times["alone"].append(_seconds(model, optimizer, x))
        for name, listener in held.items():
            subscription = subscribe(listener)
            subscription.add_root(model)
            _seconds(model, optimizer, x)  # the search for modules ends
            times[name].append(_seconds(model, optimizer, x))
            subscription.close()
    alone = statistics.median(times["alone"])
    added = {
        name: statistics.median(b - a for a, b in zip(times["alone"], times[name], strict=True))
        for name in listeners
    }
    return {name: 1e6 * seconds for name, seconds in {"alone": alone, **added}.items()}


if __name__ == "__main__":
    for layers, width in ((2, 32), (16, 64), (64, 64)):
        print(layers, width, {name: round(value, 1) for name, value in measure(layers, width).items()})
