"""Watch a network whose learning rate becomes far too high: the alerts say what happened and when.

python examples/watch.py
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import leadline

STEPS = 240


def build() -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(32, 32), nn.LayerNorm(32), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(32, 10))


def train(store: Path | None = None, steps: int = STEPS) -> leadline.Watch:
    """Train two thirds of the steps at a good rate and the rest at three hundred times that rate."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    with leadline.watch(model, optimizer, store=store, every=20) as w:
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = 0.03 if step < 2 * steps // 3 else 9.0
            x = torch.randn(128, 32)
            w.loss(F.cross_entropy(model(x), x[:, :10].argmax(1))).backward()
            optimizer.step()
            optimizer.zero_grad()
    return w


if __name__ == "__main__":
    watched = train(Path("watch_example.leadline"))
    for alert in watched.alerts:
        print(f"step {alert.step}: {alert.code} {alert.name}: {alert.message} ({alert.state})")
    print(f"watching took {watched.overhead:.1%} of the training time")
