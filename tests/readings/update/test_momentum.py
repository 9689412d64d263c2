"""A rehearsal waits until momentum has built up."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from leadline.readings.update.rehearsal import _growing_steps


def parameter() -> nn.Parameter:
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    return weight


@pytest.mark.parametrize("momentum", [0.5, 0.9, 0.99])
def test_steps_have_the_same_share_of_their_final_length_after_the_wait_for_any_momentum(momentum: float):
    weight = parameter()
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=momentum)
    for _ in range(math.ceil(_growing_steps(optimizer))):
        before = weight.item()
        optimizer.step()
    share = (before - weight.item()) * (1 - momentum)
    assert 0.56 < share < 0.8


def test_steps_that_do_not_grow_are_not_waited_for():
    assert _growing_steps(torch.optim.SGD([parameter()], lr=1.0)) == 0
    assert _growing_steps(torch.optim.Adam([parameter()], lr=1.0)) == 0


def test_the_group_with_the_most_momentum_is_waited_for():
    groups = [{"params": [parameter()], "momentum": momentum} for momentum in (0.5, 0.99, 0.9)]
    slowest = torch.optim.SGD([parameter()], lr=1.0, momentum=0.99)
    assert _growing_steps(torch.optim.SGD(groups, lr=1.0)) == _growing_steps(slowest)
