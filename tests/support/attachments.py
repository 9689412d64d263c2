"""A fixture that attaches to loops of a test, an audience that remembers what it is told, and one step of a loop."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from leadline.monitor.loop_calls import is_published
from leadline.runner.attachment import Attachment, RunSettings
from leadline.tracer.inputs import call_model, find_loss


class Ear:
    """An audience that remembers."""

    def __init__(self, *, shows_progress=False):
        self.shows_progress = shows_progress
        self.steps, self.reasons, self.alerts, self.progress = [], [], [], []

    def checking(self, step, seconds):
        self.steps.append(step)

    def checked(self, step, report):
        self.steps[-1] = step

    def not_checked(self, step, reason):
        self.reasons.append(reason)

    def alerted(self, alert):
        self.alerts.append(alert)

    def stepped(self, watch):
        self.progress.append(watch.step)

    def silenced(self):
        return contextlib.nullcontext()


def step(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.fixture
def attach():
    """Attach with some work to do at the first step; detaches afterwards."""
    attachments = []

    def make(work=None, **settings):
        attachments.append(Attachment(RunSettings(**({"is_watched": False} | settings)), Ear(), work))
        return attachments[-1]

    yield make
    for each in attachments:
        each.close()
    assert not is_published()


def replayed_loss(case):
    """The loss of the case, and its gradients, as a check computes them."""
    loss = find_loss(call_model(case.model, case.inputs), case.loss, case.targets)
    parameters = [each for each in case.model.parameters() if each.requires_grad]
    return case, loss.item(), torch.autograd.grad(loss, parameters, allow_unused=True)


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))
