"""Programs in which a library runs the loop: the Trainer of transformers, and Lightning."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from benchmarks.first_hour.program import Observation, TrainingProgram, of_watched_run
from benchmarks.first_hour.text import CONTEXT, VOCABULARY, corpus
from leadline.integrations.huggingface import LeadlineCallback as HuggingFaceCallback
from leadline.integrations.lightning import LeadlineCallback as LightningCallback
from leadline.records import Alert

STEPS = 120
DEAD_LAYERS = 30


def llama_in_trainer(lr: float) -> Observation:
    """Train a tiny Llama with the Trainer, which passes `num_items_in_batch`."""

    def train(path: Path) -> Sequence[Alert]:
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=CONTEXT,
        )
        callback = HuggingFaceCallback(store=path)
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                output_dir=folder,
                max_steps=STEPS,
                per_device_train_batch_size=8,
                learning_rate=lr,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
                logging_strategy="no",
                use_cpu=True,
                dataloader_num_workers=0,
            )
            rows = _rows(8 * STEPS)
            Trainer(
                model=LlamaForCausalLM(config), args=arguments, train_dataset=rows, callbacks=[callback]
            ).train()
        assert callback.watch is not None
        return callback.watch.alerts

    return of_watched_run(train)


def _rows(count: int) -> list[dict[str, Tensor]]:
    batches = corpus().batches(0)
    rows: list[dict[str, Tensor]] = []
    while len(rows) < count:
        rows.extend({"input_ids": idx, "labels": idx} for idx in next(batches)[0])
    return rows[:count]


class DigitsModule(lightning.LightningModule):
    """A classifier whose `training_step` calls `self.net`, never the module itself."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-3)


def digits_in_lightning(net: nn.Module) -> Observation:
    def train(path: Path) -> Sequence[Alert]:
        x, y = load_digits(return_X_y=True)
        data = TensorDataset(torch.tensor(x / 16).float(), torch.tensor(y))
        callback = LightningCallback(store=path)
        trainer = lightning.Trainer(
            max_steps=STEPS,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[callback],
        )
        trainer.fit(DigitsModule(net), DataLoader(data, batch_size=32, shuffle=True))
        assert callback.watch is not None
        return callback.watch.alerts

    return of_watched_run(train)


def _healthy_net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def _dead_net() -> nn.Module:
    layers = [layer for _ in range(DEAD_LAYERS) for layer in (nn.Linear(64, 64), nn.Sigmoid())]
    return nn.Sequential(*layers, nn.Linear(64, 10))


PROGRAMS = (
    TrainingProgram(name="Trainer, Llama at 1e-3", expected="quiet", run=lambda: llama_in_trainer(1e-3)),
    TrainingProgram(name="Trainer, Llama at 1.0", expected="alarm", run=lambda: llama_in_trainer(1.0)),
    TrainingProgram(
        name="Lightning, three layers", expected="quiet", run=lambda: digits_in_lightning(_healthy_net())
    ),
    TrainingProgram(
        name="Lightning, 30 sigmoid layers", expected="alarm", run=lambda: digits_in_lightning(_dead_net())
    ),
)
