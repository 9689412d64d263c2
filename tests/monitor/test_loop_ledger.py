"""The ledger sees mistakes of a loop, in the programs of the benchmark, and not what is done on purpose."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leadline
from benchmarks.loop.bugs import BUGS
from benchmarks.loop.healthy import HEALTHY
from benchmarks.loop.programs import PROGRAMS, train
from leadline.checks._loop import LOOP_METRICS
from leadline.monitor import loop_calls
from leadline.monitor.budget import MAX_LOSS_INTERVAL, NEVER
from leadline.monitor.distributed import Ranks
from leadline.monitor.loop_batches import DENSE_STEPS
from leadline.monitor.loop_gradients import fingerprint
from leadline.monitor.loop_ledger import FOLLOWED_STEPS, LoopLedger
from leadline.monitor.loop_phases import Cycle
from leadline.monitor.past_run import judge_run
from leadline.monitor.runfile import Run
from leadline.monitor.steps import LIGHT_STEPS_PER_CHARGE, MAX_STEPS_PER_CHARGE

# Derived: the hooks before and after the step. Each costs one or two microseconds, so another one is a decision.
MAX_RESTING_CALLS = 2


@pytest.mark.parametrize("bug", [each for each in BUGS if each not in ("copies from workers",)])
def test_a_planted_bug_is_named(bug):
    program = "mixed precision" if "mixed precision" in BUGS[bug].programs else BUGS[bug].programs[0]
    torch.manual_seed(0)
    watch = train(PROGRAMS[program](), bug, leadline.watch)
    named = [each.step for each in watch.alerts if each.code in BUGS[bug].codes]
    assert named
    assert min(named) - BUGS[bug].visible <= 50
    assert watch._steps.ledger.trouble is None


@pytest.mark.parametrize(
    "kind", ["gradient accumulation", "generator and critic", "sharpness-aware (SAM)", "trainer"]
)
def test_what_is_done_on_purpose_raises_no_alarm(kind, monkeypatch):
    monkeypatch.setattr("benchmarks.loop.healthy.STEPS", 200)
    torch.manual_seed(0)
    for watch in HEALTHY[kind](leadline.watch):
        assert not [each for each in watch.alerts if each.code >= "T816" and each.severity != "info"]
        assert watch._steps.ledger.trouble is None


def small(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def batches(count: int):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        x = torch.randn(16, 4, generator=generator)
        yield x, (x[:, 0] > 0).long()


def test_the_loss_comes_from_backward_if_it_is_not_given_and_never_twice():
    expected, recorded = [], []
    for given in (False, True):
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with leadline.watch(model, optimizer, budget=1e-6) as w:
            for x, y in batches(60):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                (w.loss(loss) if given else loss).backward()
                if not given:
                    expected.append(loss.item())
                optimizer.step()
        recorded.append(w.history.scalars("loss").values)
    assert recorded[0] == recorded[1] == pytest.approx(expected)


def test_the_parts_of_a_step_add_up_and_a_loss_scale_is_removed():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    losses = []
    with leadline.watch(model, optimizer) as w:
        for number, (x, y) in enumerate(batches(40)):
            loss = F.cross_entropy(model(x), y) / 2
            losses.append(loss.item())
            scaler.scale(loss).backward()
            if number % 2:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    sums = [a + b for a, b in zip(losses[::2], losses[1::2], strict=True)]
    assert w.history.scalars("loss").values == pytest.approx(sums)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("is_lost", [True, False])
def test_gradients_that_are_cleared_before_the_step_are_lost_whether_they_become_none_or_zero(
    to_none: bool, is_lost: bool
):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with leadline.watch(model, optimizer) as w:
        for x, y in batches(20):
            F.cross_entropy(model(x), y).backward()
            if not is_lost:
                optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)
            if is_lost:
                optimizer.step()
    assert any(w.history.scalars("lost_gradients").values) == is_lost


@pytest.mark.parametrize("extra", ["neither", "orphan", "foreign", "both"])
def test_parameters_are_missed_only_where_the_optimizer_holds_others_instead(extra: str):
    model, head = small(), nn.Linear(2, 2)
    idle = [nn.Parameter(torch.zeros(3))] if extra in ("foreign", "both") else []
    held = [*model.parameters(), *idle, *([] if extra in ("orphan", "both") else head.parameters())]
    optimizer = torch.optim.SGD(held, lr=0.01)
    whole = nn.Sequential(model, head)
    with leadline.watch(whole, optimizer) as w:
        for x, y in batches(20):
            optimizer.zero_grad()
            F.cross_entropy(whole(x), y).backward()
            optimizer.step()
    numbers = {name: w.history.scalars(f"{name}_parameters").values for name in ("orphan", "foreign")}
    last = {name: values[-1] if values else 0 for name, values in numbers.items()}
    assert last == ({"orphan": 2, "foreign": 1} if extra == "both" else {"orphan": 0, "foreign": 0})


def test_numbers_are_recorded_only_when_they_change_and_are_in_the_run_file(tmp_path):
    path = tmp_path / "run.leadline"
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with leadline.watch(model, optimizer, store=path) as w:
        for step, (x, y) in enumerate(batches(200)):
            if step < 100:
                optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    stale = w.history.scalars("stale_gradients")
    assert stale.values[0] == 0
    assert len(stale) < 10
    assert 100 <= stale.steps[1] <= 103
    with Run(path) as run:
        assert (
            {"stale_gradients", "same_batch"} <= set(run.scalar_names) <= {*run.scalar_names, *LOOP_METRICS}
        )
        report = judge_run(run)
    assert "T816" in {each.code for each in report.findings}
    assert report.verdict == "fails"


def test_the_ledger_leaves_nothing_in_the_model_and_training_is_bitwise_the_same():
    states = []
    for watched in (False, True):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        w = leadline.watch(model, optimizer, budget=1e-6) if watched else None
        for x, y in batches(150):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        if w is not None:
            w.close()
        states.append([*model.state_dict().values(), torch.get_rng_state()])
        assert not model._forward_hooks
        assert not model._forward_pre_hooks
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
    assert not loop_calls.is_published()


def test_an_error_in_the_ledger_ends_the_ledger_and_not_the_watch(monkeypatch):
    def broken(*_):
        raise RuntimeError("mine")

    monkeypatch.setattr(LoopLedger, "after_backward", broken)
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with leadline.watch(model, optimizer) as w:
        for x, y in batches(5):
            w.loss(F.cross_entropy(model(x), y)).backward()
            optimizer.step()
    assert (w.step, w.trouble) == (5, "")
    assert str(w._steps.ledger.trouble) == "mine"
    assert [each.message for each in w.events if each.kind == "warning"] == [
        "the loop is no longer followed after an internal error: RuntimeError: mine"
    ]


def test_a_check_during_training_is_not_part_of_the_loop():
    model = small()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with leadline.watch(model, optimizer) as w:
        for x, y in batches(10):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        before = w._steps.ledger.steps
        other = copy.deepcopy(model)
        leadline.check(other, x, y, F.cross_entropy, torch.optim.Adam(other.parameters(), lr=1e-3))
        assert w._steps.ledger.steps == before


def test_replicas_with_other_weights_are_counted_when_all_have_come_to_the_step():
    store, ranks = torch.distributed.HashStore(), []
    for rank in range(3):
        ranks.append(Ranks(small()))
        ranks[rank].rank, ranks[rank].world_size, ranks[rank]._store = rank, 3, store
    assert ranks[0].compare(8, 1) is None
    assert [ranks[1].compare(8, 1), ranks[2].compare(8, 2)] == [None, None]
    assert ranks[0].compare(16, 5) == 1
    assert fingerprint(small().parameters()) == fingerprint(small().parameters())
    assert fingerprint(small().parameters()) != fingerprint(small(1).parameters())


def follow_fast_loop(steps: int, forget_from: int | None = None):
    """Train with a budget that affords nothing; `zero_grad` is forgotten from one step on."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, followed = [], []
    with leadline.watch(model, optimizer, budget=1e-6) as w:
        for number, (x, y) in enumerate(batches(steps)):
            if forget_from is None or number < forget_from:
                optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
            followed.append(not w._steps.ledger.is_resting)
    assert w._steps.ledger.trouble is None
    return w, losses, followed


def test_the_ledger_of_a_fast_loop_rests_after_its_first_steps_and_losses_are_noted_at_their_steps():
    w, losses, followed = follow_fast_loop(300)
    assert followed.index(False) == DENSE_STEPS - 1
    assert not any(followed[DENSE_STEPS:])
    noted = w.history.scalars("loss")
    assert noted.values == pytest.approx([losses[step] for step in noted.steps])
    assert max(b - a for a, b in pairwise([*noted.steps, 300])) <= MAX_LOSS_INTERVAL


def test_a_mistake_that_begins_while_the_ledger_rests_is_named_when_it_follows_again(monkeypatch):
    monkeypatch.setattr("leadline.monitor.budget.MAX_LEDGER_REST", 64)
    w, _, followed = follow_fast_loop(900, forget_from=200)
    assert followed[DENSE_STEPS:].count(True) <= 12 * FOLLOWED_STEPS
    named = [each.step for each in w.alerts if each.code == "T816"]
    assert named
    assert min(named) <= 200 + 2 * (64 + MAX_STEPS_PER_CHARGE)


def test_what_the_ledger_takes_is_charged_to_the_budget():
    w, _, _ = follow_fast_loop(200)
    assert w._schedule._ledger_seconds > 0
    assert w.seconds >= w._schedule._ledger_seconds


def calls_of_leadline(part: Callable[[], None]) -> list[str]:
    """The Python functions of Leadline that a part of a program calls."""
    folder, calls = str(Path(leadline.__file__).parent), []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            calls.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        part()
    finally:
        sys.setprofile(None)
    return calls


def test_a_step_whose_loss_is_not_recorded_takes_two_calls_and_the_model_has_no_hooks(monkeypatch):
    monkeypatch.setattr("leadline.monitor.budget.MAX_LEDGER_REST", NEVER)
    # Where something was compiled, as other tests do, calls are followed without hooks.
    monkeypatch.setattr("leadline.monitor.outer_calls._has_compiled", lambda: False)
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = next(iter(batches(1)))

    def train() -> None:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    with leadline.watch(model, optimizer, budget=1e-9) as w:
        followed = len(calls_of_leadline(train))
        for _ in range(2 * DENSE_STEPS):
            train()
        assert w._steps.ledger.is_resting
        assert not model._forward_hooks
        assert not model._forward_pre_hooks
        counts = sorted(len(calls_of_leadline(train)) for _ in range(LIGHT_STEPS_PER_CHARGE))
        assert counts[len(counts) // 2] <= MAX_RESTING_CALLS < followed
        assert w.history.scalars("loss").values[-1] > 0


def test_a_schedule_by_step_is_not_followed_by_a_resting_ledger():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    with leadline.watch(model, optimizer, budget=1e-9) as w:
        for x, y in batches(2 * DENSE_STEPS):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        ledger = w._steps.ledger
        assert ledger.trouble is None
        assert ledger.is_resting
        assert "scheduled" not in ledger.resting_events
    assert "scheduled" in LoopLedger.resting_events


def test_replicas_are_compared_after_powers_of_two_steps_only():
    model = small()
    ranks = Ranks(model)
    ranks._store = torch.distributed.HashStore()
    keys = {step: (ranks.drift(step, model), ranks._store.num_keys())[1] for step in (4, 8, 9, 12)}
    assert keys[4] == 0
    assert keys[8] == keys[9] == keys[12] > 0


def test_an_evaluation_is_announced_to_a_resting_ledger(monkeypatch):
    monkeypatch.setattr("leadline.monitor.budget.MAX_LEDGER_REST", NEVER)
    # Where something was compiled, as other tests do, calls are followed without hooks.
    monkeypatch.setattr("leadline.monitor.outer_calls._has_compiled", lambda: False)
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = []
    with leadline.watch(model, optimizer, budget=1e-9) as w:
        ledger = w._steps.ledger
        monkeypatch.setattr(ledger, "_wakes_for_evaluation", lambda: bool(seen.append(model.training)))
        for number, (x, y) in enumerate(batches(2 * DENSE_STEPS)):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if number == 2 * DENSE_STEPS - 2:
                assert ledger.is_resting
                model.eval()
                with torch.no_grad():
                    model(x)
                model.train()
        assert seen == [False]
        assert not model._forward_hooks  # the next backward pass ends the evaluation


@pytest.mark.parametrize(
    ("turns", "backward", "count"),
    [([1, 2] * 5, True, 9), ([1] * 10, True, 0), ([1, 2] * 5, False, 0)],
    ids=["opponents", "one optimizer", "two that share a pass"],
)
def test_optimizers_are_opponents_if_they_take_turns_after_passes_of_their_own(turns, backward, count):
    cycle = Cycle()
    for optimizer in turns:
        cycle.has_backward = backward
        cycle.end(optimizer)
    assert cycle.alternations.count == count
