"""One small training in each library that Leadline integrates with: Lightning, transformers and Accelerate."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

STEPS = 8


def needs(library: str) -> pytest.MarkDecorator:
    """Skip the test where `library` is not installed."""
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
