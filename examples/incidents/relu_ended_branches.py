"""A thousand layers in blocks that end in their activation: the means of all branches add up.

**Reported.** Wang et al. 2025 (arXiv 2503.14858) train reinforcement learning networks of up to 1024 layers; their
block repeats a dense layer, a layer norm and an activation four times, then adds the skip. Such a branch never has
mean zero, so the stream grows by a fixed amount per block: its mean square grows with the square of the depth.

**Here.** The same block with ReLU (theirs is Swish), 250 blocks of width 32, a thousand dense layers; digits take
the place of states; Adam at 0.0003.

    python -m examples.incidents.relu_ended_branches
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import leadline
from examples.data import GUESS_A_DIGIT, batches_of, digits
from examples.incidents.incident import Incident, main

WIDTH = 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        parts = [p for _ in range(4) for p in (nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU())]
        self.branch = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def build(blocks: int = 250) -> leadline.Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, WIDTH), *(Block() for _ in range(blocks)), nn.Linear(WIDTH, 10))
    batches = batches_of(digits(), 120, rows=64)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    return leadline.Case(model, *batches[0], F.cross_entropy, optimizer, batches)


INCIDENT = Incident(cause="F105", build=build, fix="zero-mean", guess=GUESS_A_DIGIT, steps=20)

if __name__ == "__main__":
    main(INCIDENT)
