"""The losses of a fast loop are recorded as far as its budget allows, at their steps, and too few are not judged."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.optim import optimizer as shared

import leadline
from leadline.monitor import budget, light_steps, step_losses
from leadline.monitor.budget import Level
from leadline.monitor.past_run import judge_run
from leadline.monitor.runfile import Run, Writer
from leadline.records.run import Alert, RunInfo
from tests.support.accelerator import Accelerated

STEPS = 150
SHARED_HOOKS = (shared._global_optimizer_pre_hooks, shared._global_optimizer_post_hooks)


def quick_loop(steps: int = STEPS, spoilt: int | None = None, closure: bool = False, **choices):
    """A loop of steps that take less than a millisecond; the losses it saw, and its watch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    x, y = torch.randn(16, 8), torch.randint(2, (16,))
    losses, levels = [], []

    def made() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y) * (math.nan if len(losses) == spoilt else 1.0)
        losses.append(loss.item())
        loss.backward()
        return loss

    with leadline.watch(model, optimizer, **choices) as w:
        for _ in range(steps):
            levels.append(w._steps.current.level)
            if closure:
                optimizer.step(made)
            else:
                w.loss(made())
                optimizer.step()
            schedule.step()
    return w, losses, levels


@pytest.fixture
def every_loss(monkeypatch):
    """Have the loss of every step recorded, whatever it costs."""
    monkeypatch.setattr(budget, "MAX_LOSS_INTERVAL", 1)


@pytest.mark.usefixtures("every_loss")
@pytest.mark.parametrize("closure", [False, True], ids=["by call", "by closure"])
def test_a_loop_with_room_in_its_budget_leaves_every_loss_and_rate_in_its_run_file(tmp_path, closure):
    path = tmp_path / "run.leadline"
    w, losses, levels = quick_loop(store=path, budget=1e-6, closure=closure)
    assert (w.trouble, w.step) == ("", STEPS)
    assert levels.count(Level.LOSS) > STEPS / 2  # else nothing was proved
    with Run(path) as run:
        assert run.steps == list(range(STEPS))
        assert run.scalars("loss") == (list(range(STEPS)), losses)
        assert run.scalars("lr")[1] == pytest.approx([0.1 / (1 + step) for step in range(STEPS)])
        assert [*run.times().values()] == sorted(run.times().values())


@pytest.mark.usefixtures("every_loss")
def test_run_checks_see_the_losses_of_light_steps():
    w, losses, _ = quick_loop(budget=1e-6)
    assert w.history.scalars("loss").values == losses


@pytest.mark.parametrize("closure", [False, True], ids=["by call", "by closure"])
def test_a_loop_without_room_in_its_budget_leaves_losses_out_and_its_run_file_says_so(tmp_path, closure):
    path, count = tmp_path / "run.leadline", 400
    w, losses, _ = quick_loop(steps=count, store=path, budget=1e-6, closure=closure)
    assert (w.trouble, w.step) == ("", count)
    with Run(path) as run:
        steps, recorded = run.scalars("loss")
        assert recorded == [losses[step] for step in steps]
        assert len(steps) < count / 2
        assert max(b - a for a, b in pairwise([*steps, count])) <= budget.MAX_LOSS_INTERVAL
        assert run.steps[-1] == count - 1  # also if its loss is not recorded
        assert run.scalars("loss_interval")[1][-1] > 1
        assert [each.kind for each in run.events()].count("recording") > 0
        assert f"{len(steps)} of {count} steps" in judge_run(run).reason


@pytest.mark.parametrize("passes_losses", [False, True])
def test_a_loss_that_stays_nan_is_reported_within_the_interval_of_recorded_losses(passes_losses):
    broken = 200
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with leadline.watch(model, optimizer, budget=1e-6) as w:
        for step in range(broken + budget.MAX_LOSS_INTERVAL + 2):
            if step == broken:
                model.weight.data.fill_(math.nan)
            loss = model(torch.ones(2, 4)).square().mean()
            (w.loss(loss) if passes_losses else loss).backward()
            optimizer.step()
            optimizer.zero_grad()
    event = next(each for each in w.events if each.kind == "non-finite")
    assert broken <= event.step <= broken + budget.MAX_LOSS_INTERVAL
    assert "were not recorded" in event.data["timeline"]


@pytest.mark.parametrize("pattern", ["AB", "AAAB", "ABB"])
def test_steps_of_several_optimizers_are_counted_the_same_whether_their_losses_are_recorded_or_not(
    pattern, monkeypatch
):
    def count(interval: int) -> int:
        monkeypatch.setattr(budget, "MAX_LOSS_INTERVAL", interval)
        model = nn.ModuleDict({name: nn.Linear(2, 1) for name in "AB"})
        optimizers = {name: torch.optim.SGD(model[name].parameters(), lr=0.01) for name in "AB"}
        with leadline.watch(model, [*optimizers.values()], budget=1e-6) as w:
            for name in pattern * 150:
                optimizers[name].zero_grad()
                model[name](torch.ones(1, 2)).square().sum().backward()
                optimizers[name].step()
            assert w._steps.skipped.is_active == (interval > 1)
            return w.step

    assert count(64) == count(1)


@pytest.mark.parametrize("more", [0, 1, 2])
def test_a_watch_that_ends_while_losses_are_skipped_stores_its_last_step_once(tmp_path, more):
    path = tmp_path / "run.leadline"
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with leadline.watch(model, optimizer, budget=1e-6, store=path) as w:
        steps = 0
        while not (w._steps.skipped.is_active and w._steps._light_steps):
            train_once(model, optimizer)
            steps += 1
        for _ in range(more):
            train_once(model, optimizer)
    assert w.trouble == ""
    with Run(path) as run:
        assert run.scalars("loss")[0][-1] == steps - 1
        assert run.steps[-1] == steps - 1 + more


def train_once(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()


def test_training_that_stops_to_step_is_reported_while_losses_are_skipped():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with leadline.watch(model, optimizer, budget=1e-6) as w:
        for step in range(600):
            w.loss(model(torch.ones(2, 4)).square().mean()).backward()
            if step < 300:
                optimizer.step()
        assert w._steps.skipped.is_active
    assert "T811" in {each.code for each in w.alerts}


def test_pytorch_is_as_it_was_while_losses_are_skipped_and_afterwards(monkeypatch):
    # Other tests compile, after which calls of modules stay wrapped.
    monkeypatch.setattr("leadline.monitor.outer_calls._has_compiled", lambda: False)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)

    def functions() -> list[object]:
        classes = (torch.optim.SGD.zero_grad, nn.Module.zero_grad, type(scheduler).step)
        return [nn.Module.__call__, torch.autograd._engine_run_backward, *classes]

    def hooks() -> tuple[int, ...]:
        before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
        return len(before), len(after), *map(len, SHARED_HOOKS)

    plain, without_hooks = functions(), hooks()
    with leadline.watch(model, optimizer, budget=1e-6) as w:
        for step in range(20_000):  # a busy machine may follow more steps before it skips any
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if step > 200 and w._steps.skipped.left > 1:
                break
        assert functions() == plain
        assert hooks() == (1, 1, *without_hooks[2:])
    assert (functions(), hooks()) == (plain, without_hooks)


def test_a_non_finite_loss_is_reported_at_its_step_and_the_next_pass_is_traced(tmp_path):
    w, _, levels = quick_loop(budget=1e-6, spoilt=100)
    assert levels[100:102] == [Level.LOSS, Level.TRACE]
    assert [each.step for each in w.events if each.kind == "non-finite"][:1] == [100]


def test_micro_batches_of_a_light_step_are_averaged():
    rows = light_steps.LightSteps()
    rows.add(3, 0.0, [1.0, 2.0], 0.1)
    rows.add(4, 1.0, [], 0.1)
    taken = rows.take()
    assert (taken.steps, taken.scalars) == ((3, 4), {"loss": (1.5, None), "lr": (0.1, 0.1)})
    assert len(rows) == 0


def test_losses_that_a_device_has_computed_are_fetched_in_one_wait():
    rows = light_steps.LightSteps()
    for step in range(3):
        rows.add(step, float(step), [Accelerated(torch.tensor(float(step)))], None)
    Accelerated.waits.clear()
    assert rows.take().scalars == {"loss": (0.0, 1.0, 2.0)}
    assert Accelerated.waits.total() == 1


def test_the_recorded_loss_does_not_change_with_its_tensor():
    loss = torch.tensor(2.0, requires_grad=True) * 1.0
    kept = step_losses.to_number(loss)
    with torch.no_grad():
        loss /= 4
    assert kept == 2.0


def test_steps_that_were_written_before_they_are_charged_are_charged_once():
    rows = light_steps.LightSteps()
    rows.mark_charged(2)
    for step in (2, 5, 6):
        if step == 5:
            rows.starts[step] = 4.5
        rows.add(step, float(step), [1.0], None, 0.25)
        if step == 5:
            rows.take()
    charged = rows.charge(1.0)
    assert charged.training == [(0.75, 1, 0.75), (2.75, 3, 0.25), (0.75, 1, 0.75)]
    assert (charged.count, charged.watching) == (5, [0.25] * 3)
    assert rows.charge(6.0).count == 0


def recorded(path, steps: range) -> Run:
    with Writer(path, RunInfo(model="m")) as writer:
        for step in steps:
            writer.put(step, {"loss": 3.0 - step / 1000})
    return Run(path)


def test_a_run_of_which_few_steps_were_recorded_is_undecided_and_says_how_many(tmp_path):
    found = judge_run(recorded(tmp_path / "few.leadline", range(0, 300, 150)))
    assert found.verdict == "undecided"
    assert "2 of 151 steps" in found.reason
    assert judge_run(recorded(tmp_path / "all.leadline", range(300))).verdict != "undecided"


def test_a_stored_check_gives_no_verdict_on_too_few_steps(tmp_path):
    path = tmp_path / "run.leadline"
    quick_loop(steps=3, every=1, store=path)
    with Run(path) as run:
        assert run.reports
        assert judge_run(run).verdict == "undecided"
    quick_loop(steps=STEPS, every=50, store=path)
    with Run(path) as run:
        assert "too few" not in judge_run(run).reason


def test_the_state_of_a_crashed_run_names_its_error(tmp_path):
    path = tmp_path / "run.leadline"
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(MemoryError), leadline.watch(model, optimizer, store=path):
        raise MemoryError
    with Run(path) as run:
        assert judge_run(run).course.state == "ended by MemoryError"


def test_an_escalated_alert_is_not_also_a_past_alert(tmp_path):
    words = {"name": "x", "message": "m", "where": "w", "evidence": {}, "code": "T804", "since": 3}
    with Writer(tmp_path / "run.leadline", RunInfo()) as writer:
        writer.put(0, {"loss": 1.0}, {})
        for step, severity, state in (
            (5, "warning", "raised"),
            (9, "warning", "cleared"),
            (9, "error", "raised"),
        ):
            writer.alert(Alert(step=step, severity=severity, state=state, **words))
    with Run(tmp_path / "run.leadline") as run:
        assert [each.severity for each in judge_run(run).findings] == ["error"]
