"""Interventions happen only on request, change only outliers, and are recorded."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import leadline

QUIET = 40  # steps whose gradient norm hardly changes


def train(on_alert: str, *, last: float) -> tuple[leadline.Watch, list[torch.Tensor]]:
    """Gradients of norm about 1, then one that is `last` times that; the weights after each step."""
    model = nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(0)
    weights = []
    with leadline.watch(model, optimizer, on_alert=on_alert) as w:
        for step in range(QUIET + 1):
            size = last if step == QUIET else 1 + 0.01 * torch.rand(()).item()
            model.weight.grad = torch.full((1, 3), size / math.sqrt(3))
            optimizer.step()
            weights.append(model.weight.detach().clone())
    weights.append(model.weight.grad)
    return w, weights


@pytest.mark.parametrize("last", [5.0, math.nan, math.inf])
def test_an_outlier_step_is_skipped_and_its_gradient_restored(last: float):
    w, (*_, before, after, grad) = train("skip_step", last=last)
    assert torch.equal(before, after)
    assert grad is not None
    assert [event.step for event in w.events if event.kind == "intervention"] == [QUIET]


def test_an_outlier_gradient_is_clipped_to_the_limit():
    w, (*_, grad) = train("clip", last=5.0)
    assert 1.0 < grad.norm().item() < 1.1
    assert [event.step for event in w.events if event.kind == "intervention"] == [QUIET]


@pytest.mark.parametrize("how", ["skip_step", "clip"])
def test_ordinary_steps_are_not_changed(how: str):
    w, (*_, before, after, _) = train(how, last=1.005)
    assert not torch.equal(before, after)
    assert [event for event in w.events if event.kind == "intervention"] == []


def test_nothing_is_changed_by_default():
    w, (*_, before, after, _) = train("log", last=50.0)
    assert not torch.equal(before, after)
    assert [event for event in w.events if event.kind == "intervention"] == []
