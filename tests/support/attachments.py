"""An audience that remembers what an attachment tells it, and one step of a loop."""

from __future__ import annotations

import contextlib


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
