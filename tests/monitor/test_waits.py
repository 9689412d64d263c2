"""How often a watch lets the host wait for an accelerator, counted on a stand-in for one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leadline
from leadline.monitor import steps as training_steps
from leadline.monitor.parameters import learning_rates
from leadline.monitor.watch import Watch
from tests.support.accelerator import Accelerated, on_accelerator

STEPS = 40
FIRST_STEPS = 20
"""The loop itself is looked at more closely in the first 16 steps."""


def train(
    depth: int,
    steps: int,
    *,
    end_step: Callable[[torch.optim.Optimizer], None] = lambda optimizer: None,
    **options: Any,
) -> tuple[list[int], Watch]:
    """Return how often the host waited in each step of a watched training on the stand-in, and the watch."""
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
            end_step(optimizer)
            waits.append(Accelerated.waits.total())
    assert watch.trouble == ""
    return waits, watch


@pytest.mark.parametrize(("every", "steps", "depth"), [(1, 5, 2), (1, 5, 6), (10, 21, 2)])
def test_a_record_waits_once_whatever_it_holds(every: int, steps: int, depth: int):
    waits, watch = train(depth, steps, every=every)
    assert max(waits) == 1
    assert watch.report is not None


def test_a_step_that_is_traced_makes_nobody_wait_before_the_next_one():
    waits, _ = train(2, 1, every=1)
    assert waits == [0]


@pytest.fixture
def record_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the times at which something is recorded."""
    counts: list[int] = []

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any) -> Any:
            counts.append(1)
            return method(self, *args)

        return call

    for name in ("_finish", "_check_loop", "_write_light_steps"):
        monkeypatch.setattr(
            training_steps.TrainingSteps, name, counted(getattr(training_steps.TrainingSteps, name))
        )
    return counts


@pytest.mark.parametrize("is_stored", [False, True])
def test_steps_between_records_do_not_wait(tmp_path: Path, record_counts: list[int], is_stored: bool):
    before: list[int] = []
    options = {"store": tmp_path / "run.leadline"} if is_stored else {}
    waits, _ = train(2, STEPS, end_step=lambda optimizer: before.append(len(record_counts)), **options)
    records = [now - then for now, then in zip(before, [0, *before], strict=False)]
    beyond = [max(0, count - made) for count, made in zip(waits, records, strict=True)]
    assert sum(beyond[:FIRST_STEPS]) <= 1  # the weights of the first steps are compared in one wait
    assert sum(beyond[FIRST_STEPS:]) == 0
    assert waits.count(0) > len(waits) / 2


def test_a_learning_rate_on_the_device_is_copied_and_not_read():
    rate = Accelerated(torch.tensor(0.25))
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=rate)
    Accelerated.waits.clear()
    (copy,) = learning_rates([optimizer])
    rate.inner.fill_(1.0)
    assert Accelerated.waits.total() == 0
    assert float(copy) == 0.25


def test_a_record_has_the_learning_rate_of_its_own_step():
    def halve(optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["lr"] /= 2

    _, watch = train(2, 5, every=1, end_step=halve)
    assert watch.history.scalars("lr").values == [0.001 / 2**step for step in range(5)]


def test_weights_that_are_put_back_are_noticed_though_nobody_waits_for_them():
    kept: list[Tensor] = []

    def put_back(optimizer: torch.optim.Optimizer) -> None:
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        if not kept:
            kept.extend(each.inner.clone() for each in parameters)
        for parameter, old in zip(parameters, kept, strict=True):
            parameter.inner.copy_(old)

    waits, watch = train(2, STEPS, end_step=put_back)
    assert "T825" in {alert.code for alert in watch.alerts}
    assert waits.count(0) > len(waits) / 2


def numbers(watch: Watch) -> dict[str, list[float]]:
    names = ("loss", "lr", "grad_norm", "update_norm", "weight_norm", "grad_clip", "non_finite")
    return {name: watch.history.scalars(name).values for name in names}


def test_what_is_fetched_late_is_what_the_cpu_records(monkeypatch: pytest.MonkeyPatch):
    _, there = train(2, 12, every=3)
    monkeypatch.setattr("tests.monitor.test_waits.on_accelerator", lambda model: model)
    monkeypatch.setattr("tests.monitor.test_waits.Accelerated", Plain)
    _, here = train(2, 12, every=3)
    assert numbers(there) == numbers(here)
    assert there.report is not None
    assert here.report is not None
    assert [each.code for each in there.report.findings] == [each.code for each in here.report.findings]


class Plain:
    """Leaves tensors on the CPU."""

    waits = Accelerated.waits

    def __new__(cls, inner: Tensor) -> Any:
        return inner
