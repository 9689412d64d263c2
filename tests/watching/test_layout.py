"""What alarms and readers are told beside the numbers: blocks, symmetry, equilibrium, and where a NaN came from."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import leadline
from leadline.records import ParamGroup
from leadline.symmetry.equilibrium import equilibrium


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lower, self.norm, self.upper = (
            nn.Linear(6, 6, bias=False),
            nn.LayerNorm(6, eps=0.0),
            nn.Linear(6, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.upper(torch.tanh(self.norm(self.lower(x))))


def train(model: nn.Module, *, spoil: int | None = None, steps: int = 3) -> leadline.Watch:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    torch.manual_seed(0)
    with leadline.watch(model, optimizer, every=1) as w:
        for step in range(steps):
            optimizer.zero_grad()
            if step == spoil:
                with torch.no_grad():
                    model.lower.weight.fill_(math.inf)
            w.loss(model(torch.randn(5, 6)).square().mean()).backward()
            optimizer.step()
    return w


def test_alarms_know_the_block_and_the_equilibrium_of_a_weight_in_front_of_a_norm():
    layout = train(Normed()).history.layout
    place = layout.parameters.index("lower.weight")
    assert layout.blocks[layout.homes[place]].startswith("lower")
    assert [name for name, free in zip(layout.parameters, layout.invariant, strict=True) if free] == [
        "lower.weight"
    ]
    group = ParamGroup(parameters=(), lr=1.0, weight_decay=0.1, options={"betas": [0.9, 0.999]})
    expected = equilibrium("AdamW", group, count=36, radius=None)
    assert layout.rotation[place] == expected.angle
    assert layout.settling[place] == expected.steps


def test_what_is_not_finite_is_said_once_and_traced_to_the_op_it_came_from():
    told = [event for event in train(Normed(), spoil=1).events if event.kind == "non-finite"]
    ops = [event.data["op"] for event in told if "op" in event.data]
    assert ops
    assert ops[0] == "linear"
    assert sum("op" not in event.data for event in told) == 1
    assert any("timeline" in event.data for event in told)
