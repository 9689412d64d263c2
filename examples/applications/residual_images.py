"""Vision: a residual network of 24 blocks on handwritten digits, without norms and without a scale on its
branches.

Each block adds a branch as large as its input, so the mean square of the stream doubles in every block. The check
names the cause, and the repair scales the branches.

    python -m examples.applications.residual_images [--quick]
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import leadline
from examples.applications.application import Application, main
from examples.applications.digits import accuracy, batches

CHANNELS = 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.second = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        for conv in (self.first, self.second):
            nn.init.kaiming_normal_(conv.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.relu(self.first(F.relu(x))))


def build(blocks: int = 24) -> leadline.Case:
    torch.manual_seed(0)
    stem, head = nn.Conv2d(1, CHANNELS, 3, padding=1), nn.Linear(CHANNELS * 16, 10)
    body = nn.Sequential(*(Block() for _ in range(blocks)))
    model = nn.Sequential(stem, body, nn.AvgPool2d(2), nn.Flatten(), head)
    data = batches(200)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return leadline.Case(model, *data[0], F.cross_entropy, optimizer, data)


APPLICATION = Application(build=build, score=accuracy, unit="accuracy on held-out images", fix="branch-scale")

if __name__ == "__main__":
    main(APPLICATION)
