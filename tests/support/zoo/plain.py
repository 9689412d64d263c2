"""Feed-forward specimens: what ordinary layers, in-place writes, sharing and number formats do."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline import Case
from tests.support.zoo.specimen import energy, specimen

WIDTH = 8
BATCH = 6


def batch(*shape: int) -> Tensor:
    return torch.randn(BATCH, *(shape or (WIDTH,)))


def stack(layers: int, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    return nn.Sequential(*(m for _ in range(layers) for m in (nn.Linear(WIDTH, WIDTH), activation())))


@specimen()
def mlp() -> Case:
    return Case(
        nn.Sequential(stack(3), nn.Linear(WIDTH, 3)), batch(), torch.arange(BATCH) % 3, F.cross_entropy
    )


@specimen()
def conv_batch_norm() -> Case:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, stride=2),
        nn.BatchNorm2d(4),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.LazyLinear(3),
    )
    images = batch(3, 8, 8)
    model.eval()(images)  # materialises the lazy layer without moving the batch-norm statistics
    return Case(model.train(), images, torch.arange(BATCH) % 3, F.cross_entropy)


class InPlaceResidual(nn.Module):
    """In-place ReLU after a linear layer, and `+=` onto the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.lower, self.upper = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.upper(self.act(self.lower(x)))
        h += x
        return h


@specimen()
def in_place() -> Case:
    return Case(nn.Sequential(InPlaceResidual(), InPlaceResidual()), batch(), loss=energy)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = (
            nn.Embedding(11, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, 11),
        )
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.embed(tokens))))


@specimen()
def tied_weights() -> Case:
    return Case(Tied(), torch.arange(BATCH) % 11, torch.arange(BATCH) % 11, F.cross_entropy)


class Shared(nn.Module):
    """One linear layer called four times, also known by a second name, and a layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.again = self.layer
        self.idle = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.layer(x))
        return self.again(x)


@specimen()
def shared_module() -> Case:
    return Case(Shared(), batch(), loss=energy)


@specimen()
def dropout() -> Case:
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1)
    )
    return Case(model, batch(), batch(), F.mse_loss)


@specimen()
def eval_mode_mixed() -> Case:
    """Frozen batch norm: the model trains, one submodule is in eval mode."""
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH)
    )
    model[1].eval()
    return Case(model, batch(), loss=energy)


@specimen()
def frozen_layers() -> Case:
    model = nn.Sequential(stack(2), stack(1), nn.Linear(WIDTH, 3))
    model[0].requires_grad_(requires_grad=False)
    return Case(model, batch(), torch.arange(BATCH) % 3, F.cross_entropy)


@specimen()
def float64() -> Case:
    return Case(stack(2).double(), batch().double(), loss=lambda out: out.square().mean())


@specimen()
def bfloat16() -> Case:
    return Case(stack(2).bfloat16(), batch().bfloat16(), loss=energy)


@specimen()
def float16() -> Case:
    return Case(stack(2).half(), batch().half(), loss=energy)


class Functional(nn.Module):
    """No submodules at all: bare parameters and functions."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5) for _ in range(3)
        )
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = x + self.scale * F.gelu(F.linear(x, weight))
        return x @ self.weights[0]


@specimen()
def functional_only() -> Case:
    return Case(Functional(), batch(), loss=energy)


@specimen("deep")
def deeper_than_the_stack() -> Case:
    layers = []
    for _ in range(1100):  # beyond the recursion limit of 1000
        layer = nn.Linear(4, 4, bias=False)
        nn.init.orthogonal_(layer.weight)
        layers.append(layer)
    return Case(nn.Sequential(*layers), torch.randn(2, 4), loss=energy)


class Branch(nn.Module):
    """A residual branch that ends in ReLU: it can only add, so that the stream's mean grows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.relu(self.linear(x))


@specimen()
def branch_ends_in_relu() -> Case:
    return Case(nn.Sequential(Branch(), Branch(), Branch()), batch(), loss=energy)


@specimen("poisoned")
def nan_in_input() -> Case:
    x = batch()
    x[2, 3] = torch.nan
    return Case(stack(2), x, loss=energy)


class OwnLoss(nn.Module):
    """Returns its loss itself, a bare scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.layer(x), y)


@specimen()
def own_scalar_loss() -> Case:
    return Case(OwnLoss(), (batch(), batch()))


class SliceWriter(nn.Module):
    """Writes into slices and views of a fresh tensor, and into its own stream."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(WIDTH, WIDTH // 2), nn.Linear(WIDTH, WIDTH // 2)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        joined = torch.zeros_like(x)
        joined[:, : WIDTH // 2] = self.low(x)
        joined[:, WIDTH // 2 :] = self.high(x)
        first = joined[:, :1]
        first.mul_(2.0)
        return self.out(joined)


@specimen()
def slice_assignment() -> Case:
    return Case(SliceWriter(), batch(), loss=energy)


class InputWriter(nn.Module):
    """Normalizes its batch in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x.sub_(x.mean(0)).div_(2.0)
        return self.layer(x)


@specimen("overwrites")
def writes_its_input() -> Case:
    return Case(InputWriter(), batch(), loss=energy)


class TwoHeads(nn.Module):
    """A generator and a critic with two losses, added."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, noise: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        fake = torch.tanh(self.generator(noise))
        return self.critic(fake), self.critic(real) - self.critic(fake.detach())


@specimen()
def two_losses() -> Case:
    return Case(
        TwoHeads(),
        (batch(), batch()),
        loss=lambda pair: F.softplus(-pair[0]).mean() + pair[1].square().mean(),
    )
