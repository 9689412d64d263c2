"""Losses that come and steps that do not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import leadline
from leadline.errors import AlertError
from leadline.monitor.step_problems import MAX_LOSSES_BEFORE_FIRST_STEP, MIN_LOSSES_OF_STALL, StallDetector


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def codes(watch: leadline.Watch) -> list[tuple[str, str]]:
    return [(each.code, each.severity) for each in watch.alerts]


def test_an_optimizer_that_stops_stepping_is_reported_during_training():
    model, optimizer = small()
    with leadline.watch(model, optimizer) as w:
        for step in range(2 + MIN_LOSSES_OF_STALL):
            w.loss(model(torch.ones(2, 3)).mean()).backward()
            if step < 2:
                optimizer.step()
        assert codes(w) == [("T811", "error")]
        assert w.alerts[0].message.startswith(f"the loop computed {MIN_LOSSES_OF_STALL} losses since step 1")
        for _ in range(3 * MIN_LOSSES_OF_STALL):
            w.loss(model(torch.ones(2, 3)).mean())
    assert codes(w) == [("T811", "error")], "once"


def test_a_stall_ends_the_loop_if_requested():
    model, optimizer = small()
    with leadline.watch(model, optimizer, on_alert="raise") as w:
        w.loss(model(torch.ones(2, 3)).mean()).backward()
        optimizer.step()
        for _ in range(MIN_LOSSES_OF_STALL - 1):
            w.loss(model(torch.ones(2, 3)).mean())
        with pytest.raises(AlertError, match="has not stepped"):
            w.loss(model(torch.ones(2, 3)).mean())


@pytest.mark.parametrize(("losses", "said"), [(7, []), (8, [("T811", "warning")])])
def test_a_short_run_without_a_step_is_reported_at_its_end(losses, said):
    model, optimizer = small()
    with leadline.watch(model, optimizer) as w:
        for _ in range(losses):
            w.loss(model(torch.ones(2, 3)).mean()).backward()
    assert codes(w) == said


def test_losses_of_an_evaluation_are_not_missed_steps():
    model, optimizer = small()
    with leadline.watch(model, optimizer) as w:
        w.loss(model(torch.ones(2, 3)).mean()).backward()
        optimizer.step()
        with torch.no_grad():
            for _ in range(2 * MIN_LOSSES_OF_STALL):
                w.loss(model(torch.ones(2, 3)).mean())
        w.loss(model(torch.ones(2, 3)).mean()).backward()
        optimizer.step()
    assert codes(w) == []


def test_the_usual_number_of_micro_batches_is_not_a_stall():
    detector = StallDetector()
    assert (detector.limit, detector.has_stepped) == (MAX_LOSSES_BEFORE_FIRST_STEP, False)
    for micro_batches, limit in ((1, MIN_LOSSES_OF_STALL), (500, 2000), (3, 2000)):
        detector.losses = micro_batches
        detector.add_step()
        assert (detector.limit, detector.has_stepped, detector.losses) == (limit, True, 0)
    detector.losses = 1999
    assert not detector.is_stalled_at_end


def test_a_scaler_that_skips_every_step_is_reported():
    model, optimizer = small()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    with leadline.watch(model, optimizer) as w:
        for step in range(MIN_LOSSES_OF_STALL + 3):
            scaler.scale(w.loss(model(torch.ones(2, 3)).mean())).backward()
            if step >= 2:
                model.weight.grad[0, 0] = torch.inf
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert codes(w) == [("T809", "error")]
        assert "skipped" in w.alerts[0].message
        for _ in range(200):  # down to a scale of zero
            scaler.update(scaler.get_scale() / 2)
    assert [each.data["steps"] for each in w.events if each.kind == "skipped step"] == [165]
