"""Steps of float16 parameters are measured for gradients of any size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import leadline
from leadline.case import Case
from leadline.readings.update.probe import open_probe


def stack() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(4))).half()


def scaled(size: float):
    def loss(y: Tensor) -> Tensor:
        return (y.float() * size).square().mean()

    return loss


@pytest.mark.parametrize("size", [1e-12, 1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW], ids=lambda each: each.__name__)
def test_tiny_gradients_do_not_stop_a_check(kind, size: float):
    model = stack()
    before = [each.clone() for each in model.parameters()]
    optimizer = kind(model.parameters(), lr=0.1)
    report = leadline.check(model, torch.randn(8, 16).half(), None, scaled(size), optimizer)
    assert report.profile.update is not None
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("multiple", [1e-8, 1.0, 1e8])
def test_a_multiple_that_float16_cannot_hold_moves_the_weights_all_the_same(multiple: float):
    model = stack()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    case = Case(model, torch.randn(8, 16).half(), None, scaled(1.0), optimizer)
    with open_probe(case) as probe:
        direction = [torch.full_like(each, 0.25, dtype=torch.float32) / multiple for each in probe.start]
        probe.move(direction, multiple)
        for after, start in zip(probe.parameters, probe.start, strict=True):
            assert torch.equal(after, (start.float() + 0.25).half())
