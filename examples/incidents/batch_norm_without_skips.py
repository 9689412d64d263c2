"""Fifty layers with batch norm and without skips do not train: the norm itself makes the gradient explode.

**Reported.** Yang et al. 2019 (arXiv 1902.08129): in plain networks with batch norm the gradient grows
exponentially toward the input, by π/(π - 1) = 1.47 per layer in mean square after ReLUs. No variance of the initial
weights avoids it, so such networks cannot be trained beyond a small depth.

**Here.** Fifty layers of width 64 on handwritten digits, SGD at 0.05.

    python -m examples.incidents.batch_norm_without_skips
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import leadline
from examples.data import GUESS_A_DIGIT, batches_of, digits
from examples.incidents.incident import Incident, main

WIDTH = 64


def build(layers: int = 50) -> leadline.Case:
    torch.manual_seed(0)
    stack = [
        part
        for _ in range(layers)
        for part in (nn.Linear(WIDTH, WIDTH, bias=False), nn.BatchNorm1d(WIDTH), nn.ReLU())
    ]
    model = nn.Sequential(*stack, nn.Linear(WIDTH, 10))
    batches = batches_of(digits(), 120, rows=64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return leadline.Case(model, *batches[0], F.cross_entropy, optimizer, batches)


INCIDENT = Incident(cause="B205", build=build, fix="add-skips", guess=GUESS_A_DIGIT)

if __name__ == "__main__":
    main(INCIDENT)
