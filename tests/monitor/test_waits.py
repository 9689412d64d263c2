"""How often a watch lets the host wait for an accelerator, counted on a stand-in for one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import leadline
from tests.support.accelerator import Accelerated, on_accelerator

FIRST_STEPS = 20
"""The loop itself is looked at more closely in the first 16 steps."""


def waits_per_step(depth: int, steps: int, **options: int) -> list[int]:
    """How often the host waited in each step of a watched training."""
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU())]
    model, x = on_accelerator(nn.Sequential(*layers, nn.Linear(8, 3))), Accelerated(torch.randn(16, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, foreach=False)
    waits = []
    with leadline.watch(model, optimizer, **options) as watch:
        for _ in range(steps):
            Accelerated.waits.clear()
            watch.loss(model(x).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
            waits.append(Accelerated.waits.total())
    assert watch.trouble == ""
    return waits


def test_steps_between_samples_do_not_wait_for_the_device():
    later = waits_per_step(2, FIRST_STEPS + 60)[FIRST_STEPS:]
    assert later.count(0) > len(later) / 2


@pytest.mark.parametrize("every", [1, 10])
def test_a_record_waits_as_often_for_a_deep_model_as_for_a_shallow_one(every: int):
    shallow, deep = (waits_per_step(depth, FIRST_STEPS, every=every) for depth in (2, 6))
    assert max(deep) == max(shallow) <= 8
