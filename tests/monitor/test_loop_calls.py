"""What a training loop calls is published once, in order, and PyTorch is untouched before and after."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
import threading

import pytest
import torch
import torch._dynamo.testing
from torch import nn
from torch.autograd import backward as backward_by_name
from torch.nn.utils import clip_grad_norm_ as clip_by_name
from torch.nn.utils import clip_grad_value_
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils.data import DataLoader

from leadline.monitor import loop_calls, outer_calls
from leadline.monitor.loop_calls import is_published, subscribe
from leadline.monitor.loop_listener import EVENTS, LoopListener
from leadline.monitor.outer_calls import MIN_QUIET_STEPS
from tests.support.forks import status_in_child

pytestmark = pytest.mark.long


class Notes(LoopListener):
    """Notes the names of events, with what they are about."""

    def __init__(self) -> None:
        self.events: list[tuple] = []

    def names(self) -> list[str]:
        return [name for name, *_ in self.events]

    def clear(self) -> None:
        self.events.clear()


for _name in EVENTS:
    setattr(Notes, _name, lambda self, *args, name=_name: self.events.append((name, *args)))


@pytest.fixture(autouse=True)
def nobody_else():
    """Watches of other tests that were not closed listen no more."""
    loop_calls._PUBLISHER.remove_all()


@pytest.fixture
def notes():
    listener = Notes()
    subscription = subscribe(listener)
    yield listener
    subscription.close()


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))


def torch_parts() -> list:
    optimizers = torch.optim.Optimizer, torch.optim.Adam, torch.optim.LBFGS
    return [
        nn.Module.__call__,
        nn.Module.zero_grad,
        nn.Module.load_state_dict,
        torch.autograd._engine_run_backward,
        torch.serialization._load,
        clip_by_name.__closure__[0].cell_contents,
        clip_grad_value_.__closure__[0].cell_contents,
        *(each.zero_grad for each in optimizers),
        torch.optim.lr_scheduler.LRScheduler.step,
        torch.optim.lr_scheduler.ReduceLROnPlateau.step,
        torch.amp.GradScaler.scale,
        torch.amp.GradScaler.unscale_,
        DataLoader.__iter__,
        len(_global_optimizer_pre_hooks),
        len(_global_optimizer_post_hooks),
    ]


def test_torch_is_exactly_as_before_when_nobody_listens():
    before = torch_parts()
    one, other = subscribe(Notes()), subscribe(Notes())
    assert is_published()
    one.close()
    assert torch_parts() != before
    other.close()
    other.close()
    assert torch_parts() == before
    assert not is_published()


def test_the_calls_of_a_step_come_in_their_order(notes):
    model = small()
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    notes.clear()
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    clip_by_name(model.parameters(), 1.0)
    clip_grad_value_(model.parameters(), clip_value=2.0)
    optimizer.step()
    schedule.step()
    model.zero_grad(set_to_none=False)
    assert notes.names() == [
        "zeroed",
        "before_call",
        "after_call",
        "before_backward",
        "after_backward",
        "clipped",
        "clipped",
        "before_step",
        "after_step",
        "scheduled",
        "zeroed",
    ]
    clips = [event for event in notes.events if event[0] == "clipped"]
    assert [len(each[1]) for each in clips] == [4, 4]
    assert [each[2] for each in clips] == [1.0, 2.0]
    assert clips[0][3] > 0
    assert clips[1][3] is None
    assert notes.events[-1] == ("zeroed", model, False)


@pytest.mark.parametrize("compiler", [False, True], ids=["by hooks", "by the wrapper"])
def test_only_the_outermost_call_of_a_module_is_published_also_after_the_search(notes, compiler, monkeypatch):
    monkeypatch.setattr(outer_calls, "_has_compiled", lambda: compiler)
    model, loss = small(), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3 * MIN_QUIET_STEPS):
        notes.clear()
        loss(model(torch.ones(2, 3)), torch.ones(2, 1)).backward()
        optimizer.step()
        assert [event[1] for event in notes.events if event[0] == "before_call"] == [model, loss]
        assert [event[1] for event in notes.events if event[0] == "after_call"] == [model, loss]
    assert hasattr(vars(nn.Module)["__call__"], "__wrapped__") is compiler


def test_an_evaluation_by_another_module_is_found_when_its_loader_starts(notes):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5 * MIN_QUIET_STEPS):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    average = copy.deepcopy(model)
    notes.clear()
    for batch in DataLoader(torch.ones(4, 3), batch_size=2):
        average(batch)
    assert notes.names() == ["iterated", *["before_call", "after_call"] * 2]


@pytest.mark.parametrize("compiler", [False, True], ids=["by hooks", "by the wrapper"])
def test_a_module_that_raises_or_calls_itself_does_not_confuse_later_calls(notes, compiler, monkeypatch):
    monkeypatch.setattr(outer_calls, "_has_compiled", lambda: compiler)

    class Countdown(nn.Module):
        def forward(self, n):
            if n < 0:
                raise ValueError("below zero")
            return self(n - 1) if n else torch.zeros(1)

    module = Countdown()
    for n in (3, -1, 2, -1, 1):
        notes.clear()
        if n < 0:
            with pytest.raises(ValueError, match="below"):
                module(n)
            assert notes.names() == ["before_call"]
        else:
            module(n)
            assert [(name, args[0]) for name, _, args, *_ in notes.events] == [
                ("before_call", n),
                ("after_call", n),
            ]


def test_every_way_of_calling_backward_is_seen_and_grad_is_not(notes):
    x = torch.ones(2, requires_grad=True)
    torch.autograd.backward([x.sum(), (x * 2).sum()])
    backward_by_name((x * 3).sum())
    torch.autograd.grad((x * 4).sum(), x)
    assert notes.names() == ["before_backward", "after_backward"] * 2
    assert len(notes.events[0][1]) == 2


def test_a_backward_pass_inside_of_another_and_a_repeated_forward_pass_are_part_of_it(notes):
    model = small()
    x = torch.ones(2, 3, requires_grad=True)
    torch.utils.checkpoint.checkpoint(model, x, use_reentrant=True).sum().backward()
    assert notes.names() == ["before_call", "after_call", "before_backward", "after_backward"]


def test_a_backward_pass_in_another_thread_is_seen(notes):
    x = torch.ones(2, requires_grad=True)
    thread = threading.Thread(target=lambda: x.sum().backward())
    thread.start()
    thread.join()
    assert notes.names() == ["before_backward", "after_backward"]


def test_an_optimizer_that_overrides_step_and_zero_grad_is_seen_once_per_call(notes):
    class Own(torch.optim.SGD):
        def zero_grad(self, set_to_none=True):
            for group in self.param_groups:
                for each in group["params"]:
                    each.grad = None

        def step(self, closure=None):
            return super().step(closure)

    model = small()
    optimizer = Own(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    notes.clear()
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert [name for name in notes.names() if name in ("zeroed", "before_step")][:1] == ["zeroed"]
    assert notes.names().count("before_step") >= 1
    assert notes.names().count("zeroed") == 1


def test_mixed_precision_is_followed(notes):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    loss = model(torch.ones(2, 3)).sum()
    notes.clear()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    assert notes.names() == [
        "scaled",
        "before_backward",
        "after_backward",
        "unscaled",
        "before_step",
        "after_step",
    ]
    assert notes.events[0][2] / notes.events[0][1] == 8.0
    off = torch.amp.GradScaler("cpu", enabled=False)
    assert off.scale(loss) is loss
    assert notes.events[-1][1] is notes.events[-1][2]


def test_loaded_states_and_files_are_seen(notes):
    model = small()
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    file = io.BytesIO()
    torch.save({"model": model.state_dict()}, file)
    file.seek(0)
    notes.clear()
    model.load_state_dict(torch.load(file)["model"])
    optimizer.load_state_dict(optimizer.state_dict())
    schedule.load_state_dict(schedule.state_dict())
    assert [(name, subject) for name, subject in notes.events if name == "loaded"] == [
        ("loaded", model),
        ("loaded", optimizer),
        ("loaded", schedule),
    ]
    assert notes.names()[0] == "read"


def test_an_error_in_a_listener_ends_its_subscription_and_nothing_else(notes):
    class Bad(LoopListener):
        error = None

        def before_backward(self, roots):
            raise RuntimeError("mine")

        def failed(self, error):
            self.error = error
            raise RuntimeError("mine too")

    bad = Bad()
    subscribe(bad)
    for _ in range(2):
        torch.ones(2, requires_grad=True).sum().backward()
    assert str(bad.error) == "mine"
    assert notes.names() == ["before_backward", "after_backward"] * 2


def test_what_is_copied_or_saved_meanwhile_is_loaded_without_leadline(notes, tmp_path):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert pickle.loads(pickle.dumps(clip_by_name)) is clip_by_name
    torch.save((model, optimizer), tmp_path / "saved.pt")
    copied = copy.deepcopy(model)
    notes.clear()
    model(torch.ones(2, 3))
    assert notes.names() == ["before_call", "after_call"]
    assert torch.equal(copied(torch.ones(2, 3)), model(torch.ones(2, 3)))
    code = (
        "import sys; sys.modules['leadline'] = None; import torch; "
        f"m, o = torch.load({str(tmp_path / 'saved.pt')!r}, weights_only=False); "
        "m(torch.ones(2, 3)).sum().backward(); o.step()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_does_not_publish(notes):
    def look() -> None:
        assert not is_published()
        assert not _global_optimizer_pre_hooks

    assert status_in_child(look) == 0
    assert is_published()


def trained(listener: LoopListener | None) -> list[torch.Tensor]:
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 1))
    for each in model.parameters():
        nn.init.constant_(each, 0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    subscription = subscribe(listener) if listener else None
    torch.manual_seed(3)
    for batch in DataLoader(torch.randn(60, 3), batch_size=5, shuffle=True):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        clip_by_name(model.parameters(), 0.1)
        optimizer.step()
        schedule.step()
    if subscription:
        subscription.close()
    return [*model.state_dict().values(), torch.get_rng_state()]


def test_training_is_bitwise_the_same_while_somebody_listens():
    alone, watched = trained(None), trained(Notes())
    assert all(torch.equal(one, other) for one, other in zip(alone, watched, strict=True))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_compiled_step_neither_breaks_nor_compiles_again(when):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend=counter, fullgraph=True)
    def loss_of(x):
        return model(x).square().mean()

    listener = Notes()
    subscription = None
    for step in range(3 * MIN_QUIET_STEPS):
        if step == (0 if when == "before" else 2):
            subscription = subscribe(listener)
        optimizer.zero_grad()
        loss_of(torch.ones(2, 3)).backward()
        optimizer.step()
    subscription.close()
    for _ in range(2):
        loss_of(torch.ones(2, 3)).backward()
    assert counter.frame_count == 1
    assert listener.names().count("before_step") >= 3 * MIN_QUIET_STEPS - 2
    assert listener.names().count("before_backward") == listener.names().count("before_step")
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_optimizer_is_compiled_as_often():
    counts = []
    for listens in (False, True):
        torch._dynamo.reset()
        counter = torch._dynamo.testing.CompileCounter()
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        subscription = subscribe(Notes()) if listens else None
        step = torch.compile(optimizer.step, backend=counter)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            step()
        if subscription:
            subscription.close()
        counts.append((counter.frame_count, counter.op_count))
    assert counts[0] == counts[1]
    torch._dynamo.reset()
