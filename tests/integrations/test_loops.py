"""Watches inside Lightning, the Trainer of transformers and Accelerate, each with the real library."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from leadline.integrations.sinks import FunctionSink
from leadline.monitor.past_run import judge_run
from leadline.monitor.runfile.read import Run
from tests.support.library_loops import (
    STEPS,
    accelerate_loop,
    data,
    huggingface_train,
    lightning_fit,
    needs,
    network,
    same,
    weights,
)


@needs("lightning")
def test_lightning_is_watched_and_trains_as_without(tmp_path: Path):
    from leadline.integrations.lightning import LeadlineCallback

    rows: list = []
    callback = LeadlineCallback(
        store=tmp_path / "run.leadline",
        every=4,
        sinks=[FunctionSink(lambda values, step: rows.append(values))],
    )
    watched = lightning_fit(tmp_path, [callback])
    plain = lightning_fit(tmp_path, [])
    assert same(weights(watched), weights(plain))
    assert callback.watch.closed
    assert not callback.watch.trouble
    run = Run(tmp_path / "run.leadline")
    steps, losses = run.scalars("loss")
    assert len(steps) == STEPS
    assert all(0 < each < 5 for each in losses)
    assert all(each > 0 for each in run.scalars("grad_norm")[1])
    assert all(each > 0 for each in run.scalars("update_norm")[1])
    assert "leadline/grad_norm" in rows[-1]


@needs("lightning")
def test_lightning_clipping_is_audited(tmp_path: Path):
    from leadline.checks.run.heavy_clipping import audit_clipping
    from leadline.integrations.lightning import LeadlineCallback

    callback = LeadlineCallback(every=4)
    lightning_fit(tmp_path, [callback], gradient_clip_val=0.05)
    found = audit_clipping(callback.watch.history)
    assert found.clipped == found.steps == STEPS
    assert 0.5 < found.removed < 1.0


@needs("lightning")
def test_lightning_stops_normally_on_request(tmp_path: Path):
    from leadline.integrations.lightning import LeadlineCallback

    class Poison(LeadlineCallback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 3:
                pl_module.net[0].weight.data[0, 0] = torch.nan

    callback = Poison(every=4, on_alert="stop")
    module = lightning_fit(tmp_path, [callback])
    assert 3 < module.ended_at < STEPS
    assert "T814" in {each.code for each in callback.watch.alerts}


@needs("lightning")
def test_a_crash_in_lightning_is_recorded_and_stays_the_users_error(tmp_path: Path):
    from leadline.integrations.lightning import LeadlineCallback

    class Crash(LeadlineCallback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 3:
                raise ZeroDivisionError("the user's own")

    callback = Crash(store=tmp_path / "run.leadline")
    with pytest.raises(ZeroDivisionError, match="the user's own"):
        lightning_fit(tmp_path, [callback])
    assert callback.watch.closed
    assert "crash" in {each.kind for each in Run(tmp_path / "run.leadline").events()}


@needs("accelerate")
@needs("transformers")
def test_the_trainer_of_transformers_is_watched_and_trains_as_without(tmp_path: Path):
    from leadline.integrations.huggingface import LeadlineCallback

    callback = LeadlineCallback(store=tmp_path / "run.leadline", every=4)
    watched, logged = huggingface_train(tmp_path, [callback])
    plain, _ = huggingface_train(tmp_path, [])
    assert same(weights(watched), weights(plain))
    assert callback.watch.closed
    assert not callback.watch.trouble
    run = Run(tmp_path / "run.leadline")
    assert run.scalars("loss")[1] == pytest.approx([each["loss"] for each in logged], rel=1e-3)
    assert all(each > 0 for each in run.scalars("update_norm")[1])


@needs("accelerate")
@needs("transformers")
def test_clipping_by_the_trainer_is_seen_on_sampled_steps(tmp_path: Path):
    from leadline.integrations.huggingface import LeadlineCallback

    callback = LeadlineCallback(every=4)
    huggingface_train(tmp_path, [callback], max_grad_norm=0.01)
    found = callback.watch.history.scalars("grad_clip").values
    assert found
    assert min(found) > 0.5


@needs("accelerate")
@needs("transformers")
def test_accumulated_micro_batches_of_the_trainer_are_one_step_with_one_loss(tmp_path: Path):
    from leadline.integrations.huggingface import LeadlineCallback

    callback = LeadlineCallback(every=4)
    _, logged = huggingface_train(tmp_path, [callback], gradient_accumulation_steps=2)
    found = callback.watch.history.scalars("loss")
    assert found.values == pytest.approx([each["loss"] for each in logged], rel=1e-3)


@needs("accelerate")
@needs("transformers")
def test_the_trainer_of_transformers_stops_normally_on_request(tmp_path: Path):
    from leadline.integrations.huggingface import LeadlineCallback

    class Poison(LeadlineCallback):
        def on_step_begin(self, args, state, control, **given):
            if state.global_step == 3:
                given["model"].net[0].weight.data[0, 0] = torch.nan

    callback = Poison(every=4, on_alert="stop")
    _, logged = huggingface_train(tmp_path, [callback])
    assert len(logged) < STEPS
    assert "T814" in {each.code for each in callback.watch.alerts}


@needs("accelerate")
def test_accelerate_is_watched_and_trains_as_without(tmp_path: Path):
    watched = accelerate_loop(tmp_path / "run.leadline", watched=True)
    assert same(weights(watched), weights(accelerate_loop(None, watched=False)))
    run = Run(tmp_path / "run.leadline")
    assert len(run.scalars("grad_norm")[0]) == STEPS // 2  # eight micro-batches are four steps
    assert len(run.scalars("loss")[0]) == STEPS // 2


@needs("accelerate")
def test_the_trackers_of_an_accelerator_are_a_sink():
    from leadline.integrations.accelerate import tracker_sink

    class Tracker:
        logged: tuple = ()

        def log(self, values, step):
            self.logged = (values, step)

    tracker = Tracker()
    tracker_sink(tracker).numbers(7, {"leadline/loss": 1.0})
    assert tracker.logged == ({"leadline/loss": 1.0}, 7)


def test_a_plain_loop_reports_what_clipping_removed():
    import leadline

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, y = data().tensors
    with leadline.watch(model, optimizer, every=4) as watch:
        for limit in (1e-3, 1e3):
            optimizer.zero_grad()
            watch.loss(nn.functional.cross_entropy(model(x), y)).backward()
            before = watch.unclipped(nn.utils.clip_grad_norm_(model.parameters(), limit))
            optimizer.step()
    clipped, free = watch.history.scalars("grad_clip").values
    assert clipped > 0.9
    assert free == pytest.approx(0.0, abs=1e-6)
    assert watch.history.latest("grad_norm") == pytest.approx(float(before), rel=1e-4)


def _calls_a_part(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model.net(x)


def _calls_several_parts(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model.third(model.second(model.first(x)))


def _calls_nothing(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    for each in model.net:
        x = nn.functional.linear(x, each.weight).relu() if isinstance(each, nn.Linear) else x
    return x


def _dead_network() -> nn.Module:
    """Thirty plain layers that the gradient does not cross, in a module that defines no forward."""
    torch.manual_seed(0)
    layers = [each for _ in range(30) for each in (nn.Linear(16, 16), nn.ReLU())]
    return nn.ModuleDict({"net": nn.Sequential(*layers, nn.Linear(16, 3))})


def _watched(model: nn.Module, forward, path: Path | None = None, steps: int = 6):
    import leadline

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, y = torch.randn(16, 16), torch.randint(0, 3, (16,))
    with leadline.watch(model, optimizer, store=path) as watch:
        for _ in range(steps):
            optimizer.zero_grad()
            watch.loss(nn.functional.cross_entropy(forward(model, x)[:, :3], y)).backward()
            optimizer.step()
    assert watch.trouble == ""
    return watch


@needs("lightning")
def test_a_training_step_that_calls_a_part_of_the_module_is_traced_from_its_first_step(tmp_path: Path):
    from leadline.integrations.lightning import LeadlineCallback

    callback = LeadlineCallback()
    lightning_fit(tmp_path, [callback])
    samples = [each.step for each in callback.watch.events if each.kind == "sample"]
    assert samples[0] == 0
    assert callback.watch.report.profile.blocks[0].name.startswith("net.")


def test_a_dead_network_whose_loop_calls_only_a_part_of_it_fails():
    watch = _watched(_dead_network(), _calls_a_part)
    assert watch.report.verdict == "fails"
    assert "what runs outside net" in {each.what for each in watch.report.coverage.gaps}


def test_of_several_parts_that_a_loop_calls_the_largest_is_traced():
    model = nn.Module()
    model.first, model.third = nn.Linear(16, 16), nn.Linear(16, 16)
    model.second = nn.Sequential(nn.Linear(16, 16, bias=True), nn.ReLU(), nn.Linear(16, 16, bias=False))
    model.second[2].weight = model.second[0].weight  # so that no part has more than half of the parameters
    model.second.extra = nn.Parameter(torch.zeros(16))
    watch = _watched(model, _calls_several_parts)
    assert "what runs outside second" in {each.what for each in watch.report.coverage.gaps}


def test_a_part_called_on_its_own_does_not_hide_the_calls_of_the_model():
    model = nn.Sequential(nn.Sequential(*(nn.Linear(16, 16) for _ in range(4))), nn.Linear(16, 3))
    watch = _watched(model, lambda model, x: model(x) + 0 * model[0](x).sum(), steps=3)
    assert not any(each.what.startswith("what runs outside") for each in watch.report.coverage.gaps)


def test_a_loop_that_calls_no_module_is_told_so_and_the_report_says_so(tmp_path: Path, caplog):
    watch = _watched(_dead_network(), _calls_nothing, tmp_path / "run.leadline")
    assert watch.report is None
    assert [each for each in caplog.messages if "no step can be sampled" in each]
    with Run(tmp_path / "run.leadline") as run:
        gaps = {each.what: each.why for each in judge_run(run).coverage.gaps}
    assert "no step can be sampled" in gaps["the inside of the model"]


def _train_llama(tmp_path: Path, rate: float, steps: int = 48):
    """Train a tiny Llama with the Trainer, which passes `num_items_in_batch`; return its watch and its losses."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    from leadline.integrations.huggingface import LeadlineCallback

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=32,
    )  # fmt: skip
    starts = torch.randint(0, 32, (64, 1), generator=torch.Generator().manual_seed(1))
    tokens = (starts + 3 * torch.arange(24)) % 32
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=steps, per_device_train_batch_size=8, learning_rate=rate,
        lr_scheduler_type="constant", report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True,
        use_cpu=True, seed=3,
    )  # fmt: skip
    callback = LeadlineCallback(every=16)
    trainer = Trainer(
        model=LlamaForCausalLM(config), args=arguments, train_dataset=rows, callbacks=[callback]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    assert callback.watch.trouble == ""
    return callback.watch, [each["loss"] for each in trainer.state.log_history if "loss" in each]


@needs("accelerate")
@needs("transformers")
def test_a_healthy_llama_in_the_trainer_raises_no_alert_about_its_first_loss(tmp_path: Path):
    watch, losses = _train_llama(tmp_path, 1e-3)
    assert losses[-1] < losses[0]
    assert {"I308", "T815"}.isdisjoint(each.code for each in watch.alerts)


@needs("accelerate")
@needs("transformers")
def test_a_llama_whose_rate_destroys_it_in_the_trainer_is_alarmed(tmp_path: Path):
    watch, losses = _train_llama(tmp_path, 1.0)
    assert min(losses[-16:]) > losses[0]
    assert "T815" in {each.code for each in watch.alerts}
