"""Alarms as a real watch rings them, in real training loops."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import leadline
from leadline.records.run import Alert

STEPS = 40


class Net(nn.Module):
    """Four blocks, and a head that no loss uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.Linear(16, 16) for _ in range(4)])
        self.head, self.unused = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.head(x)


def train(
    model: Net, optimizer: torch.optim.Optimizer, *, batch=None, steps: int = STEPS, spoil=None
) -> list[Alert]:
    """Alerts of a watched run; `spoil` is called with the step before it begins."""
    generator = torch.Generator().manual_seed(1)
    with leadline.watch(model, optimizer, every=5, on_alert=lambda alert: None) as watch:
        for step in range(steps):
            if spoil is not None:
                spoil(step)
            x = torch.randn(32, 16, generator=generator) if batch is None else batch
            loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
            optimizer.zero_grad()
            watch.loss(loss).backward()
            optimizer.step()
    assert not watch.trouble
    return [each for each in watch.alerts if each.code.startswith("T8")]


def found(alerts: list[Alert], code: str) -> Alert:
    return next(each for each in alerts if each.code == code)


def test_a_healthy_run_with_an_unused_head_gets_a_note_and_nothing_else():
    model = Net()
    alerts = train(model, torch.optim.AdamW(model.parameters(), 1e-3))
    assert [(each.code, each.severity) for each in alerts] == [("T812", "info")]
    assert alerts[0].where == "unused.weight … unused.bias"


def test_a_block_that_no_optimizer_holds_is_named():
    model = Net()
    del model.unused
    given = [each for name, each in model.named_parameters() if not name.startswith("blocks.2.")]
    alert = found(train(model, torch.optim.AdamW(given, 1e-3)), "T811")
    assert alert.severity == "warning"
    assert alert.where.startswith("blocks.2")


def test_a_weight_that_becomes_nan_is_reported_within_a_few_steps():
    model = Net()

    def spoil(step: int) -> None:
        if step == 20:
            model.blocks[1].weight.data[0, 0] = math.nan

    alert = found(train(model, torch.optim.AdamW(model.parameters(), 1e-3), spoil=spoil), "T814")
    assert (alert.severity, alert.since) == ("error", 20)
    assert alert.step < 25


def test_the_same_batch_at_every_step_is_reported():
    model = Net()
    batch = torch.randn(32, 16, generator=torch.Generator().manual_seed(2))
    alerts = train(model, torch.optim.AdamW(model.parameters(), 1e-3), batch=batch, steps=100)
    assert found(alerts, "T810").severity == "info"


def test_one_gradient_a_hundred_times_too_large_is_a_spike():
    model = Net()
    handles = []

    def spoil(step: int) -> None:
        if step == 280:
            handles.extend(each.register_hook(lambda grad: grad * 100) for each in model.blocks.parameters())
        if step == 281:
            for handle in handles:
                handle.remove()

    alert = found(train(model, torch.optim.AdamW(model.parameters(), 1e-3), steps=290, spoil=spoil), "T801")
    assert alert.since in (280, 281)


def test_a_spike_between_two_looks_is_reported_when_the_watch_is_closed_at_the_latest(monkeypatch):
    """The checks of a fast loop run so rarely that the loss has already recovered. Here all its losses are recorded."""
    monkeypatch.setattr("leadline.monitor.budget.MAX_LOSS_INTERVAL", 1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    noise = torch.Generator().manual_seed(0)
    with leadline.watch(model, optimizer) as w:
        for step in range(600):
            loss = model(torch.randn(32, 4, generator=noise)).square().mean() + 2.0
            w.loss(loss.item() * (6.0 if 300 <= step < 304 else 1.0))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert 300 <= found(w.alerts, "T801").since < 304
