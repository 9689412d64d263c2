"""Six small training programs, each with places where one mistake of a training loop can be planted."""

from __future__ import annotations

import copy
import io
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

STEPS = 240
EVALUATE_EVERY = 20
BATCH = 16
CLASSES = 4


@dataclass
class Program:
    """A program: a model, its data and its loss. The loop is the same text for all."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    labels: Tensor | None = None
    """The class of each sample; None if there are none."""
    schedule: Callable[[torch.optim.Optimizer, int], Any] | None = None
    scaler: bool = False
    parts: int = 1
    """Batches per step."""
    clip: float | None = 1.0
    bugs: frozenset[str] = field(default_factory=frozenset)


class TextModel(nn.Module):
    """A causal language model of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.positions = nn.Parameter(0.1 * torch.randn(12, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(16, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        hidden = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        return self.head(self.layer(hidden, src_mask=mask, is_causal=True))


class OwnLossModel(nn.Module):
    """A classifier that computes its loss itself, as in `transformers`."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, CLASSES))

    def forward(self, input_values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.body(input_values)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Autoencoder(nn.Module):
    """A variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 20))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        code = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        return self.decoder(code), mean, log_variance


def _separated(samples: int, width: int) -> tuple[Tensor, Tensor]:
    """Samples around one center per class, in random order."""
    labels = torch.randint(CLASSES, (samples,))
    return torch.randn(CLASSES, width)[labels] * 1.5 + torch.randn(samples, width), labels


def text() -> Program:
    start = torch.randint(32, (640, 1))
    tokens = (start + torch.arange(13) * 3 + (torch.rand(640, 13) < 0.1)) % 32
    return Program(
        model=TextModel(),
        inputs=tokens[:, :-1],
        targets=tokens[:, 1:],
        loss=lambda model, x, y: F.cross_entropy(model(x).flatten(0, 1), y.flatten()),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=2e-3),
        schedule=lambda optimizer, steps: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps),
    )


def image() -> Program:
    x, labels = _separated(640, 64)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, CLASSES)
    )
    return Program(
        model=model,
        inputs=x.reshape(-1, 1, 8, 8),
        targets=labels,
        labels=labels,
        loss=lambda model, x, y: F.cross_entropy(model(x), y),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
        schedule=lambda optimizer, steps: torch.optim.lr_scheduler.StepLR(optimizer, steps // 3, 0.3),
    )


def autoencoder() -> Program:
    x = torch.randn(640, 6) @ torch.randn(6, 20) + 0.1 * torch.randn(640, 20)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        output, mean, log_variance = model(x)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return F.mse_loss(output, y) + 0.01 * divergence

    return Program(
        model=Autoencoder(),
        inputs=x,
        targets=x,
        loss=loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=2e-3),
        clip=None,
    )


def regression() -> Program:
    x = torch.randn(640, 8)
    y = torch.sin(x[:, :1]) + 0.5 * x[:, 1:2] + 0.1 * torch.randn(640, 1)
    criterion = nn.MSELoss()
    return Program(
        model=nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1)),
        inputs=x,
        targets=y,
        loss=lambda model, x, y: criterion(model(x), y),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        schedule=lambda optimizer, steps: torch.optim.lr_scheduler.ExponentialLR(
            optimizer, 0.01 ** (1 / steps)
        ),
    )


def mixed_precision() -> Program:
    x, labels = _separated(640, 12)
    return Program(
        model=nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, CLASSES)),
        inputs=x,
        targets=labels,
        labels=labels,
        loss=lambda model, x, y: F.cross_entropy(model(x), y),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=2e-3),
        scaler=True,
    )


def trainer() -> Program:
    x, labels = _separated(640, 10)
    return Program(
        model=OwnLossModel(),
        inputs=x,
        targets=labels,
        labels=labels,
        loss=lambda model, x, y: model(input_values=x, labels=y)["loss"],
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        schedule=lambda optimizer, steps: torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(1.0, step / 20) * max(0.0, 1 - step / steps)
        ),
        parts=4,
    )


PROGRAMS: dict[str, Callable[[], Program]] = {
    "text": text,
    "image": image,
    "autoencoder": autoencoder,
    "regression": regression,
    "mixed precision": mixed_precision,
    "trainer": trainer,
}


class _Unsplit(IterableDataset[tuple[Tensor, Tensor]]):
    """A stream of samples that does not ask which worker it is in."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(self.inputs, self.targets, strict=True)


def _loader(program: Program, bug: str) -> DataLoader[Any]:
    inputs, targets = program.inputs, program.targets
    if bug == "sorted data" and program.labels is not None:
        order = program.labels.argsort()
        inputs, targets = inputs[order], targets[order]
    if bug == "copies from workers":
        return DataLoader(_Unsplit(inputs, targets), BATCH, num_workers=2)
    shuffle = bug not in ("sorted data", "same batch")
    return DataLoader(TensorDataset(inputs, targets), BATCH, shuffle=shuffle)


def _batches(loader: DataLoader[Any], bug: str) -> Iterator[Any]:
    if bug == "same batch":
        while True:
            yield next(iter(loader))
    for _ in itertools.count():
        yield from loader


def _resumed(program: Program) -> nn.Module:
    """A model that was trained before, loaded from a file that also holds the state of its optimizer."""
    before = copy.deepcopy(program.model)
    optimizer = program.optimizer(before.parameters())
    for start in range(0, 320, BATCH):
        optimizer.zero_grad()
        program.loss(
            before, program.inputs[start : start + BATCH], program.targets[start : start + BATCH]
        ).backward()
        optimizer.step()
    file = io.BytesIO()
    torch.save({"model": before.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    program.model.load_state_dict(torch.load(file)["model"])
    return program.model


def train(program: Program, bug: str, start_watch: Callable[..., Any], steps: int = STEPS) -> Any:
    """Train with one mistake; "" for none. Return the watch."""
    model = program.model
    optimizer = program.optimizer(model.parameters())
    others: list[torch.optim.Optimizer] = []
    if bug == "part replaced after the optimizer":
        name = [name for name, each in model.named_modules() if isinstance(each, nn.Linear)][-1]
        model.set_submodule(name, copy.deepcopy(model.get_submodule(name)))
    if bug == "one optimizer never steps":
        parameters = list(model.parameters())
        optimizer, other = program.optimizer(parameters[:2]), program.optimizer(parameters[2:])
        others = [other]
    watch = start_watch(model, [optimizer, *others])
    if bug == "state lost on resume":
        _resumed(program)
    make_schedule = program.schedule
    if bug == "schedule per batch":
        make_schedule = lambda optimizer, steps: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)  # noqa: E731
    elif bug == "cosine per batch":
        make_schedule = lambda optimizer, steps: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)  # noqa: E731
    elif bug == "rate of zero":
        make_schedule = lambda optimizer, steps: torch.optim.lr_scheduler.LambdaLR(  # noqa: E731
            optimizer, lambda step: max(0.0, 1 - step / 60)
        )
    elif bug == "schedule never stepped":
        make_schedule = lambda optimizer, steps: torch.optim.lr_scheduler.StepLR(optimizer, 2)  # noqa: E731
    schedule = make_schedule(optimizer, steps) if make_schedule else None
    scaler = torch.amp.GradScaler("cpu", enabled=program.scaler or bug == "clip before unscale")
    loader = _loader(program, bug)
    validation = program.inputs[:128] + 0, program.targets[:128]
    if program.inputs.is_floating_point():
        validation = program.inputs[:128] + 0.5, program.targets[:128]
    parts = 4 if bug == "undivided parts" else program.parts
    clip = 1.0 if "clip" in bug else program.clip
    initial = copy.deepcopy(model.state_dict())
    if bug == "eval mode":
        model.eval()
    batches = _batches(loader, bug)
    for step in range(steps):
        if bug == "new optimizer each step":
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        if bug == "state cleared each step":
            optimizer.state.clear()
        if bug not in ("no zero_grad", "zero_grad before step"):
            optimizer.zero_grad()
        if bug == "step before backward":
            x, y = next(batches)
            loss = program.loss(model, x, y)
            optimizer.step()
            loss.backward()
            continue
        if bug == "no backward" and step > 40:
            with torch.no_grad():
                program.loss(model, *next(batches))
            optimizer.step()
            continue
        if bug == "step without zero, twice":
            x, y = next(batches)
            program.loss(model, x, y).backward()
            optimizer.step()
            optimizer.step()
            continue
        for _ in range(parts):
            x, y = next(batches)
            loss = program.loss(model, x, y)
            scaler.scale(loss if bug == "undivided parts" else loss / parts).backward()
        if bug == "zero_grad before step":
            optimizer.zero_grad(set_to_none=step % 2 == 0)
        if clip and bug != "clip after step":
            if bug != "clip before unscale":
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        if bug == "clip after step":
            nn.utils.clip_grad_norm_(model.parameters(), clip or 1.0)
        if bug == "weights restored":
            model.load_state_dict(initial)
        if schedule is not None and bug != "schedule never stepped":
            schedule.step()
        if (step + 1) % EVALUATE_EVERY == 0:
            _evaluate(program, model, validation, (x, y), bug)
    watch.close()
    return watch


def _evaluate(
    program: Program,
    model: nn.Module,
    validation: tuple[Tensor, Tensor],
    batch: tuple[Tensor, Tensor],
    bug: str,
) -> None:
    if bug not in ("train mode in evaluation", "eval mode"):
        model.eval()
    with torch.no_grad():
        for start in range(0, 128, BATCH):
            x, y = validation[0][start : start + BATCH], validation[1][start : start + BATCH]
            if bug == "evaluation of training data":
                x, y = batch
            program.loss(model, x, y)
    if bug not in ("eval mode", "eval mode after evaluation"):
        model.train()
