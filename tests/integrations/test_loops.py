"""Watches inside Lightning, the Trainer of transformers and Accelerate, each with the real library."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from leadline.integrations.sinks import FunctionSink
from leadline.monitor.runfile.read import Run

STEPS = 8


def needs(library: str):
    return pytest.mark.skipif(find_spec(library) is None, reason=f"{library} is not installed")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)
    )


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 6, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long())


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [each.detach().clone() for each in model.state_dict().values()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def lightning_fit(tmp_path: Path, callbacks: list, **settings) -> nn.Module:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch, index):
            x, y = batch
            return nn.functional.cross_entropy(self.net(x), y)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1e-2)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = Module()
        trainer = lightning.Trainer(
            max_steps=STEPS, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks,
            default_root_dir=str(tmp_path), **{"devices": 1, **settings},
        )  # fmt: skip
        torch.manual_seed(2)
        trainer.fit(module, DataLoader(data(), batch_size=8))
    module.ended_at = trainer.global_step
    return module


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


class Rows(Dataset):
    """Rows as the Trainer wants them."""

    def __init__(self) -> None:
        self.x, self.y = data().tensors

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index], "labels": self.y[index]}


class Classifier(nn.Module):
    """A model that returns its loss, as those of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def huggingface_train(tmp_path: Path, callbacks: list, **settings) -> tuple[nn.Module, list[dict]]:
    from transformers import Trainer, TrainingArguments

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments = TrainingArguments(
            output_dir=str(tmp_path), max_steps=STEPS, per_device_train_batch_size=8, learning_rate=1e-2,
            report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True, use_cpu=True, seed=3, **settings,
        )  # fmt: skip
        model = Classifier()
        trainer = Trainer(model=model, args=arguments, train_dataset=Rows(), callbacks=callbacks)
        trainer.train()
    return model, [each for each in trainer.state.log_history if "loss" in each]


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


def accelerate_loop(store: Path | None, *, watched: bool, precision: str = "no") -> nn.Module:
    from accelerate import Accelerator

    from leadline.integrations.accelerate import watch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision=precision)
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data(), batch_size=8))
        found = watch(accelerator, model, optimizer, store=store, every=2) if watched else None
        torch.manual_seed(4)
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                if found is not None:
                    found.loss(loss)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        if found is not None:
            found.close()
            assert not found.trouble
    return model


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
