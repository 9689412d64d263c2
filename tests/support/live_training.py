"""A real training that is watched: `python training.py RUN STOP` trains until the file STOP is there."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch import nn

import leadline

BLOCKS = 6
WIDTH = 16


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return x


def train(path: str, stop: Path) -> int:
    """How many steps it made."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    inputs, targets = torch.randn(32, WIDTH), torch.randn(32, WIDTH)
    with leadline.watch(model, optimizer, store=path, every=10) as watch:
        while not stop.exists():
            optimizer.zero_grad()
            watch.loss(nn.functional.mse_loss(model(inputs), targets)).backward()
            optimizer.step()
            time.sleep(0.02)
    return watch.step


if __name__ == "__main__":
    print(train(sys.argv[1], Path(sys.argv[2])))  # noqa: T201 (for the test that started it)
