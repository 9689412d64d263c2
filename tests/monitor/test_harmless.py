"""A watch never harms the training it observes: errors, interrupts, copies, forks and internal failures."""

from __future__ import annotations

import copy
import gc
import io
import weakref

import pytest
import torch
from torch import Tensor, nn

import leadline
from leadline.monitor import norms, sampler
from leadline.monitor.runfile.read import Run
from leadline.monitor.step_charges import StepCharges
from leadline.monitor.step_record import StepRecord
from tests.support.failing_cases import RaiseInBackward, UserError
from tests.support.forks import status_in_child
from tests.support.watched_training import count_hooks, small_training


def test_a_watch_that_cannot_start_is_freed_in_silence(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise UserError("cannot start")

    unraisable: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)
    monkeypatch.setattr("leadline.monitor.watch.TrainingSteps", fail)
    model = nn.Linear(2, 1)
    with pytest.raises(UserError):
        leadline.watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
    gc.collect()
    assert unraisable == []


class FailingModel(nn.Module):
    """Raises `accident` in the pass named by `where`."""

    def __init__(self, accident: BaseException, where: str) -> None:
        super().__init__()
        self.layer, self.accident, self.where = nn.Linear(4, 1), accident, where

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        if self.where == "forward":
            raise self.accident
        return RaiseInBackward.apply(h, self.accident) if self.where == "backward" else h


@pytest.mark.parametrize("accident", [UserError("mine"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("where", ["forward", "loss", "backward"])
def test_an_error_of_the_loop_is_raised_and_leaves_no_hook(where: str, accident: BaseException, tmp_path):
    model = FailingModel(accident, where)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = tmp_path / "run.leadline"

    def train() -> None:
        with leadline.watch(model, optimizer, every=1, store=path):
            loss = model(torch.ones(2, 4)).mean()
            if where == "loss":
                raise accident
            loss.backward()

    with pytest.raises(type(accident)) as caught:
        train()
    assert caught.value is accident
    assert count_hooks(model, optimizer) == 0
    assert [event.kind for event in Run(path).events()] == ["crash"]


def test_an_interrupted_forward_leaves_no_trace_at_the_next_step():
    model = FailingModel(KeyboardInterrupt(), "forward")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with leadline.watch(model, optimizer, every=1):
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(2, 4))
        optimizer.step()
        assert torch._C._len_torch_function_stack() == 0


def test_a_crash_event_has_the_last_values_and_the_last_finite_sample(tmp_path):
    model, optimizer, x = small_training()
    path = tmp_path / "run.leadline"

    def train() -> None:
        with leadline.watch(model, optimizer, every=2, store=path) as w:
            for _ in range(3):
                w.loss(model(x).square().mean()).backward()
                optimizer.step()
            raise UserError("mine")

    with pytest.raises(UserError):
        train()
    (crash,) = [event for event in Run(path).events() if event.kind == "crash"]
    assert crash.data["loss"]["steps"] == [0, 1, 2]
    assert crash.data["last_good_sample"] == 2
    assert Run(path).reports == [0, 2]


FAULTS = {
    "taking norms": (norms.Norms, "__init__"),
    "ending a step": (StepRecord, "numbers"),
    "settling": (StepCharges, "charge_step"),
    "reading a sample": (sampler.Samples, "add"),
    "making a report": (sampler.Samples, "_make_report"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_an_internal_error_ends_the_watch_and_not_the_training(name: str, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("injected")

    plain, watched = [], []
    for losses, with_watch in ((plain, False), (watched, True)):
        model, optimizer, x = small_training()
        if with_watch:
            monkeypatch.setattr(*FAULTS[name], fail)
            w = leadline.watch(model, optimizer, every=1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses == plain
    w.close()
    assert "injected" in w.trouble
    assert count_hooks(model, optimizer) == 0


def test_an_error_inside_the_recorder_does_not_reach_the_models_forward(monkeypatch):
    from leadline.tracer.recorder import Recorder

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("injected")

    monkeypatch.setattr(Recorder, "_after_call", fail)
    model, optimizer, x = small_training()
    expected = copy.deepcopy(model)(x)
    w = leadline.watch(model, optimizer, every=1)
    found = model(x)
    assert torch.equal(found, expected)
    found.sum().backward()
    optimizer.step()
    assert "injected" in w.trouble
    assert count_hooks(model, optimizer) == 0


def test_copies_and_pickles_of_a_watched_model_and_optimizer_do_not_report():
    model, optimizer, x = small_training()
    with leadline.watch(model, optimizer, every=1) as w:
        twin, saved = copy.deepcopy(model), io.BytesIO()
        torch.save(model, saved)
        saved.seek(0)
        loaded = torch.load(saved, weights_only=False)
        twin_optimizer = copy.deepcopy(optimizer)
        for other in (twin, loaded):
            other(x).sum().backward()
        twin_optimizer.step()
        assert w.step == 0
        assert w._steps.sampler._pass is None


def test_passes_without_gradient_are_not_taken_for_the_training_pass():
    model, optimizer, x = small_training()
    with leadline.watch(model, optimizer, every=1) as w:
        with torch.no_grad():
            model(torch.zeros(50, 4))
        model(x).square().mean().backward()
        optimizer.step()
        _, seen = w._steps.samples.last
    assert seen.values[0].shape == (5, 4)


def test_parameters_retain_their_hooks_and_no_empty_list_is_left():
    """For an empty list of hooks autograd asks Python at every parameter of every later pass."""
    model = nn.Linear(2, 1)
    model.bias.register_post_accumulate_grad_hook(own := lambda parameter: None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with leadline.watch(model, optimizer, every=1) as w:
        model(torch.ones(3, 2)).mean().backward()
        optimizer.step()
        assert any(each.kind == "sample" for each in w.events)
    assert model.weight._post_accumulate_grad_hooks is None
    assert list(model.bias._post_accumulate_grad_hooks.values()) == [own]


def test_a_watch_is_freed_with_its_model():
    model, optimizer, _ = small_training()
    known = weakref.ref(leadline.watch(model, optimizer))
    del model, optimizer
    gc.collect()
    assert known() is None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_leaves_the_run_file_alone(tmp_path):
    model, optimizer, x = small_training()
    path = tmp_path / "run.leadline"
    with leadline.watch(model, optimizer, every=1, store=path) as w:
        assert status_in_child(w.close) == 0
        w.loss(model(x).square().mean()).backward()
        optimizer.step()
    assert list(Run(path).steps) == [0]


def test_a_resumed_run_continues_after_its_last_step(tmp_path):
    path = tmp_path / "run.leadline"
    for _ in range(2):
        model, optimizer, x = small_training()
        with leadline.watch(model, optimizer, every=1, store=path) as w:
            for _ in range(2):
                w.loss(model(x).square().mean()).backward()
                optimizer.step()
    assert list(Run(path).steps) == [0, 1, 2, 3]


def test_of_two_watches_each_gets_its_samples():
    model, optimizer, x = small_training()
    with leadline.watch(model, optimizer, every=3) as one, leadline.watch(model, optimizer, every=3) as other:
        for _ in range(5):
            model(x).mean().backward()
            optimizer.step()
    assert [[e.step for e in w.events if e.kind == "sample"] for w in (one, other)] == [[0, 3], [1, 4]]


def test_optimizers_inside_the_backward_pass_do_not_look_like_a_cut_graph():
    model, _, x = small_training()
    optimizers = {each: torch.optim.SGD([each], lr=0.1) for each in model.parameters()}

    def used_up(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(used_up)
    with leadline.watch(model, list(optimizers.values()), every=1) as w:
        w.loss(model(x).square().mean()).backward()
    assert w.report is not None
    assert "B203" not in {each.code for each in w.report.findings}


def test_a_pass_inside_vmap_is_not_sampled():
    model, optimizer, x = small_training()
    watch = leadline.watch(model, optimizer, every=100)
    per_sample = torch.func.vmap(lambda row: model(row[None]).sum())(x)
    per_sample.mean().backward()
    optimizer.step()
    watch.close()
    assert (watch.trouble, watch.step) == ("", 1)
    assert [each.kind for each in watch.events] == []


def test_of_findings_with_one_code_the_first_is_the_alert():
    """A non-finite gradient after a non-finite loss is a consequence and not a cause."""
    model, optimizer, x = small_training()
    x[0, 0] = torch.nan
    with leadline.watch(model, optimizer, every=1) as w:
        w.loss(model(x).mean()).backward()
        optimizer.step()
    (alert,) = [each for each in w.alerts if each.code == "N701"]
    assert alert.message.startswith("input contains NaN or infinity")
