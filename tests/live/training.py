"""A real training that is watched: `python training.py RUN STEPS SECONDS`, one step every so many seconds."""

from __future__ import annotations

import sys
import time

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


def train(path: str, steps: int, pause: float) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    inputs, targets = torch.randn(32, WIDTH), torch.randn(32, WIDTH)
    with leadline.watch(model, optimizer, store=path, every=10) as watch:
        for _ in range(steps):
            optimizer.zero_grad()
            watch.loss(nn.functional.mse_loss(model(inputs), targets)).backward()
            optimizer.step()
            time.sleep(pause)


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
