"""Programs with a loss or optimizers of their own kind: VAE, BYOL, GAN, LoRA."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn, optim
from torch.nn import functional as F

import leadline
from benchmarks.first_hour.gpt import GPT, Network, token_loss
from benchmarks.first_hour.program import Observation, TrainingProgram, of_loop, of_report
from benchmarks.first_hour.text import corpus

BATCH = 64
STEPS = 200


def digits() -> tuple[Tensor, Tensor]:
    """Return 8x8 images between 0 and 1, flat, and their labels."""
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16).float(), torch.tensor(y)


def digit_batches(seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    x, y = digits()
    generator = torch.Generator().manual_seed(seed)
    while True:
        chosen = torch.randint(len(x), (BATCH,), generator=generator)
        yield x[chosen], y[chosen]


def train(
    optimizer: optim.Optimizer, loss_of_next_batch: Callable[[], Tensor], steps: int = STEPS
) -> list[float]:
    """Run a plain loop, to see whether the program learns; return its losses."""
    losses = []
    for _ in range(steps):
        loss = loss_of_next_batch()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class VAE(nn.Module):
    """The variational autoencoder of every tutorial."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(64, 8), nn.Linear(64, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.Sigmoid())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(code), mean, log_variance


def vae_loss(output: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    image, mean, log_variance = output
    error = F.binary_cross_entropy(image, x, reduction="sum") / len(x)
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum() / len(x)
    return error + divergence


def vae() -> Observation:
    model, batches = VAE(), digit_batches()
    optimizer = optim.Adam(model.parameters(), 1e-3)
    x, _ = next(batches)
    report = leadline.check(model, x, x, vae_loss, optimizer)

    def loss_of_next_batch() -> Tensor:
        images, _ = next(batches)
        return vae_loss(model(images), images)

    return of_report(report, train(optimizer, loss_of_next_batch))


class BYOL(nn.Module):
    """An online network that predicts what its own slow average says about another view."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
        self.predictor = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
        self.target = copy.deepcopy(self.online).requires_grad_(requires_grad=False)

    def forward(self, view: Tensor, other: Tensor) -> Tensor:
        predicted = self.predictor(self.online(view))
        with torch.no_grad():
            target = self.target(other)
        return 2 - 2 * F.cosine_similarity(predicted, target, dim=-1).mean()

    @torch.no_grad()
    def follow(self) -> None:
        for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=True):
            slow.lerp_(fast, 0.01)


def byol() -> Observation:
    model, batches = BYOL(), digit_batches()
    optimizer = optim.AdamW(trainable(model), 1e-3)

    def views() -> tuple[Tensor, Tensor]:
        x, _ = next(batches)
        return x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)

    report = leadline.check(model, views(), optimizer=optimizer)

    def loss_of_next_batch() -> Tensor:
        model.follow()
        return model(*views())

    return of_report(report, train(optimizer, loss_of_next_batch))


def gan() -> Observation:
    """Train both networks of a GAN in turn, each with its own optimizer, under one watch."""
    generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.Sigmoid())
    critic = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    model = nn.ModuleDict({"generator": generator, "critic": critic})
    for_critic = optim.Adam(critic.parameters(), 2e-4, betas=(0.5, 0.999))
    for_generator = optim.Adam(generator.parameters(), 2e-4, betas=(0.5, 0.999))
    batches = digit_batches()

    def step(_: int) -> Tensor:
        real, _ = next(batches)
        fake = generator(torch.randn(BATCH, 16))
        real_loss, fake_loss = _judged(critic(real), 1.0), _judged(critic(fake.detach()), 0.0)
        for_critic.zero_grad()
        (real_loss + fake_loss).backward()
        for_critic.step()
        generator_loss = _judged(critic(fake), 1.0)
        for_generator.zero_grad()
        generator_loss.backward()
        for_generator.step()
        return generator_loss

    return of_loop(model, [for_critic, for_generator], step, STEPS)


def _judged(logits: Tensor, truth: float) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, truth))


class LowRank(nn.Module):
    """A frozen linear layer plus a trainable product of two thin matrices, the second of them zero at the start."""

    def __init__(self, linear: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(requires_grad=False)
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.up(self.down(x))


def lora() -> Observation:
    """Adapt a GPT that knows text to the same text in capitals, with everything but the adapters frozen."""
    model, batches = GPT(Network()), corpus().batches(0)
    pretraining = optim.AdamW(model.parameters(), 3e-3)

    def loss_of_next_batch(shift: int = 0) -> Tensor:
        idx, targets = ((codes + shift) % 64 for codes in next(batches))
        return token_loss(model(idx), targets)

    train(pretraining, loss_of_next_batch)
    model.requires_grad_(requires_grad=False)
    for block in model.blocks:
        block.attention.qkv = LowRank(block.attention.qkv)
        block.feedforward.up = LowRank(block.feedforward.up)
    optimizer = optim.AdamW(trainable(model), 3e-3)
    idx, targets = ((codes + 1) % 64 for codes in next(batches))
    report = leadline.check(model, idx, targets, token_loss, optimizer)
    return of_report(report, train(optimizer, lambda: loss_of_next_batch(1)))


def two_optimizers() -> Observation:
    """Check a GPT whose matrices learn by SGD and whose vectors and embeddings learn by AdamW."""
    model = GPT(Network())
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and name.startswith("blocks")]
    chosen = {id(parameter) for parameter in matrices}
    others = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    optimizers = [optim.SGD(matrices, 0.05, momentum=0.9), optim.AdamW(others, 3e-3)]
    idx, targets = next(corpus().batches(0))
    return of_report(leadline.check(model, idx, targets, token_loss, optimizers))


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


PROGRAMS = (
    TrainingProgram(name="VAE, BCE(sum)/batch + KL", expected="quiet", run=vae),
    TrainingProgram(name="BYOL with an EMA copy", expected="quiet", run=byol),
    TrainingProgram(name="GAN, two optimizers", expected="quiet", run=gan),
    TrainingProgram(name="GPT, two optimizers", expected="quiet", run=two_optimizers),
    TrainingProgram(name="LoRA on a frozen GPT", expected="quiet", run=lora),
)
