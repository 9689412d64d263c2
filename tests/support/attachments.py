"""An audience that remembers what an attachment tells it, and one step of a loop."""

from __future__ import annotations

import contextlib


class Ear:
    """An audience that remembers."""

    shows_progress = False

    def __init__(self):
        self.steps, self.reasons, self.alerts = [], [], []

    def checking(self, step, seconds):
        self.steps.append(step)

    def checked(self, step, report):
        self.steps[-1] = step

    def not_checked(self, step, reason):
        self.reasons.append(reason)

    def alerted(self, alert):
        self.alerts.append(alert)

    def stepped(self, watch):
        pass

    def silenced(self):
        return contextlib.nullcontext()


def step(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
