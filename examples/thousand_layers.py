"""Train a causal Transformer of 1000 blocks (2000 residual sub-layers) on real text, on a laptop's processor.

    python examples/thousand_layers.py                    # half an hour on one core of a busy machine
    python examples/thousand_layers.py --depth 50         # minutes
    python examples/thousand_layers.py --scheme post      # the control: stays at the unigram entropy
    python examples/thousand_layers.py --optimizer muon   # Muon for the matrices of the blocks, AdamW for the rest

The text is the language reference that every Python carries (`pydoc_data.topics`), character by character.
Ctrl-C saves and stops; the same command continues from there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.nn.functional as F
from rich.progress import Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import load_file, save_file
from torch import Tensor

from leadline.nn import LanguageModel, Options, param_groups
from leadline.nn.clipping import clip_norm_
from leadline.nn.schedules import schedule

HELD_OUT = 0.1  # share of the text, taken from its end
# Heuristic: the usual norm for clipping in language models.
MAX_GRADIENT_NORM = 1.0
# Heuristic: the cosine schedule ends at a tenth of the peak rate, as is usual.
FINAL_RATE_FACTOR = 0.1
HELD_OUT_BATCHES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The settings that determine the result."""

    scheme: str
    depth: int
    steps: int
    seed: int
    lr: float
    width: int
    time: int
    batch: int
    optimizer: str = "adamw"


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Character ids for training and held out, and the log frequency of each character in training."""

    train: Tensor
    held_out: Tensor
    vocab: int
    log_frequency: Tensor


def read_text() -> Text:
    text = "\n".join(topics[key] for key in sorted(topics))
    letters = {letter: i for i, letter in enumerate(sorted(set(text)))}
    ids = torch.tensor([letters[letter] for letter in text])
    cut = int(len(ids) * (1 - HELD_OUT))
    counts = Counter(ids[:cut].tolist())
    frequency = torch.tensor([(counts[i] + 1) / (cut + len(letters)) for i in range(len(letters))])
    return Text(train=ids[:cut], held_out=ids[cut:], vocab=len(letters), log_frequency=frequency.log())


def batch_of(ids: Tensor, run: Run, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(ids) - run.time - 1, (run.batch, 1), generator=generator)
    window = ids[starts + torch.arange(run.time + 1)]
    return window[:, :-1], window[:, 1:]


def loss_of(model: LanguageModel, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def build(run: Run, vocab: int) -> tuple[LanguageModel, list[torch.optim.Optimizer]]:
    generator = torch.Generator().manual_seed(run.seed)
    model = LanguageModel(
        vocab,
        run.width,
        run.width // 16,
        run.depth,
        scheme=run.scheme,
        max_len=run.time,
        options=Options(positions="learned"),
        generator=generator,
    )
    if run.optimizer == "muon":
        both = param_groups(model, run.scheme, "muon", lr=run.lr, weight_decay=0.01)
        return model, [torch.optim.Muon(both.muon), _adamw(both.adamw)]
    return model, [_adamw(param_groups(model, run.scheme, "adamw", lr=run.lr, weight_decay=0.01))]


def _adamw(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)


def held_out_batches(text: Text, run: Run) -> list[tuple[Tensor, Tensor]]:
    """Return the same windows in every run and at every measurement."""
    generator = torch.Generator().manual_seed(0)
    return [batch_of(text.held_out, run, generator) for _ in range(HELD_OUT_BATCHES)]


@torch.no_grad()
def held_out_loss(model: LanguageModel, batches: list[tuple[Tensor, Tensor]]) -> float:
    return sum(float(loss_of(model, batch)) for batch in batches) / len(batches)


def unigram_entropy(text: Text, batches: list[tuple[Tensor, Tensor]]) -> float:
    """Return the cross-entropy on these windows of a predictor that knows only character frequencies."""
    return -float(torch.cat([text.log_frequency[batch[1]].flatten() for batch in batches]).mean())


class Checkpoint:
    """Weights, optimizer state and random state in one safetensors file, and the curve in a JSON file next to it.

    Each file is written under a temporary name and renamed, so an interruption leaves the last complete one.
    """

    def __init__(self, folder: Path, run: Run) -> None:
        stepped_by = "" if run.optimizer == "adamw" else f"-{run.optimizer}"
        name = f"{run.scheme}-{run.depth}{stepped_by}-lr{run.lr:g}-seed{run.seed}"
        folder.mkdir(parents=True, exist_ok=True)
        self.tensors, self.curve = folder / f"{name}.safetensors", folder / f"{name}.json"

    def save(
        self, model: LanguageModel, optimizers: list[torch.optim.Optimizer], generator: torch.Generator
    ) -> None:
        tensors = {f"model.{name}": value.contiguous() for name, value in model.state_dict().items()}
        for number, optimizer in enumerate(optimizers):
            for index, state in optimizer.state_dict()["state"].items():
                prefix = f"optimizer.{number}.{index}"
                tensors |= {f"{prefix}.{name}": value.contiguous() for name, value in state.items()}
        tensors["generator"] = generator.get_state()
        part = self.tensors.with_suffix(".part")
        save_file(tensors, part)
        os.replace(part, self.tensors)

    def load(
        self, model: LanguageModel, optimizers: list[torch.optim.Optimizer], generator: torch.Generator
    ) -> None:
        tensors = load_file(self.tensors)
        prefix = "model."
        model.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
        states: list[dict[int, dict[str, Tensor]]] = [{} for _ in optimizers]
        for key, value in tensors.items():
            if key.startswith("optimizer."):
                _, number, index, name = key.split(".")
                states[int(number)].setdefault(int(index), {})[name] = value
        for optimizer, state in zip(optimizers, states, strict=True):
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        generator.set_state(tensors["generator"])

    def write_curve(self, record: dict[str, Any]) -> None:
        part = self.curve.with_suffix(".part")
        part.write_text(json.dumps(record, indent=1) + "\n")
        os.replace(part, self.curve)


class Trainer:
    """A run in progress: model, optimizer, random state and record after the last complete step."""

    def __init__(self, run: Run, folder: Path) -> None:
        self.run, self.text = run, read_text()
        self.held_out = held_out_batches(self.text, run)
        self.model, self.optimizers = build(run, self.text.vocab)
        self.peak_rates = [group["lr"] for group in self.groups]
        self.factor = schedule(
            "cosine", warmup_steps=max(1, run.steps // 20), total_steps=run.steps, floor=FINAL_RATE_FACTOR
        )
        self.generator = torch.Generator().manual_seed(1000 + run.seed)
        unigram = unigram_entropy(self.text, self.held_out)
        self.record: dict[str, Any] = {
            **asdict(run),
            "unigram": unigram,
            "train": [],
            "held_out": [],
            "seconds": 0.0,
        }
        self.checkpoint = Checkpoint(folder, run)
        if self.checkpoint.tensors.exists():
            self.checkpoint.load(self.model, self.optimizers, self.generator)
            self.record = json.loads(self.checkpoint.curve.read_text())

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all optimizers."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def step(self) -> None:
        """Take one training step and append its loss to the record."""
        step = len(self.record["train"])
        for group, rate in zip(self.groups, self.peak_rates, strict=True):
            group["lr"] = rate * self.factor(step)
        loss = loss_of(self.model, batch_of(self.text.train, self.run, self.generator))
        loss.backward()
        clip_norm_(self.model.parameters(), MAX_GRADIENT_NORM)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.record["train"].append(round(float(loss.detach()), 4))

    def test(self) -> None:
        """Append the loss on the held-out windows to the record."""
        loss = round(held_out_loss(self.model, self.held_out), 4)
        self.record["held_out"].append([len(self.record["train"]), loss])

    def summary(self) -> str:
        held_out_losses = self.record["held_out"]
        held_out = f"{held_out_losses[-1][1]:.3f}" if held_out_losses else "-"
        return (
            f"loss {self.record['train'][-1]:.3f}  held out {held_out}  unigram {self.record['unigram']:.3f}"
        )

    def save(self) -> None:
        self.checkpoint.save(self.model, self.optimizers, self.generator)
        self.checkpoint.write_curve(self.record)


@contextmanager
def record_interrupts() -> Iterator[list[int]]:
    """Yield a list that Ctrl-C appends to, so that a step is never interrupted halfway."""
    interrupts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


def train(run: Run, folder: Path, *, test_every: int = 25) -> dict[str, Any]:
    """Return the record of the run: its settings, the unigram entropy, and the loss at every step."""
    trainer = Trainer(run, folder)
    losses = trainer.record["train"]
    with progress_bar() as bar, record_interrupts() as interrupts:
        task = bar.add_task(f"{run.scheme} {run.depth}", total=run.steps, loss="")
        while len(losses) < run.steps and not interrupts:
            started = time.perf_counter()
            trainer.step()
            if len(losses) % test_every == 0 or len(losses) == run.steps:
                trainer.test()
                trainer.save()
            trainer.record["seconds"] = round(trainer.record["seconds"] + time.perf_counter() - started, 2)
            bar.update(task, completed=len(losses), loss=trainer.summary())
        trainer.save()
    if interrupts:
        raise KeyboardInterrupt
    return trainer.record


def progress_bar() -> Progress:
    return Progress(
        *Progress.get_default_columns()[:3], TimeRemainingColumn(), TextColumn("{task.fields[loss]}")
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scheme", default="residual-linear")
    parser.add_argument("--depth", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=2e-2)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--time", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--optimizer", choices=["adamw", "muon"], default="adamw")
    parser.add_argument(
        "--threads", type=int, default=1
    )  # more threads slow each other down on a busy machine
    parser.add_argument("--folder", type=Path, default=Path("runs/thousand_layers"))
    options = vars(parser.parse_args())
    torch.set_num_threads(options.pop("threads"))
    folder = options.pop("folder")
    try:
        record = train(Run(**options), folder)
    except KeyboardInterrupt:
        print("stopped and saved; run the same command to continue")
        return
    print(f"held-out loss {record['held_out'][-1][1]:.3f} nats, unigram entropy {record['unigram']:.3f}")


if __name__ == "__main__":
    main()
