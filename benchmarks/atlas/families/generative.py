"""Autoencoders, variational ones, diffusion, flows, densities, differential equations."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.atlas.families.blocks import act, norm, wide
from benchmarks.atlas.families.images import gratings
from benchmarks.atlas.problem import Batch, Knobs, Recipe, Setup, family


@family("autoencoders", "norms", "activation", "width")
def autoencoder(knobs: Knobs) -> Setup:
    """A convolutional bottleneck that restores clean images."""
    width = wide(knobs, 12)

    def draw(generator: torch.Generator) -> Batch:
        x, _, clean = gratings(generator, 24)
        return Batch((x,), clean)

    model = nn.Sequential(
        nn.Conv2d(1, width, 4, stride=2, padding=1),
        norm(knobs, nn.BatchNorm2d(width)),
        act(knobs),
        nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
        act(knobs),
        nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1),
        norm(knobs, nn.BatchNorm2d(width)),
        act(knobs),
        nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1),
    )
    return Setup(model, draw, F.mse_loss, "numbers", Recipe("adam", 3e-3), 250)


class Variational(nn.Module):
    def __init__(self, knobs: Knobs) -> None:
        super().__init__()
        width = wide(knobs, 48)
        self.encode = nn.Sequential(nn.Linear(144, width), act(knobs), nn.Linear(width, 12))
        self.decode = nn.Sequential(nn.Linear(6, width), act(knobs), nn.Linear(width, 144))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_var = self.encode(x).chunk(2, -1)
        hidden = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        return self.decode(hidden), mean, log_var


@family("autoencoders", "activation", "width")
def variational_autoencoder(knobs: Knobs) -> Setup:
    """Binary cross entropy summed over pixels, plus the KL term."""

    def draw(generator: torch.Generator) -> Batch:
        clean = (gratings(generator, 48)[2] > 0).float().flatten(1)
        return Batch((clean,), clean)

    def loss(output: tuple[Tensor, Tensor, Tensor], targets: Tensor) -> Tensor:
        picture, mean, log_var = output
        restored = F.binary_cross_entropy_with_logits(picture, targets, reduction="sum")
        kl = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum()
        return (restored + kl) / len(targets)

    return Setup(Variational(knobs), draw, loss, "own", Recipe("adam", 3e-3), 400, evaluate=loss)


class Denoiser(nn.Module):
    def __init__(self, knobs: Knobs) -> None:
        super().__init__()
        width = wide(knobs, 64)
        self.net = nn.Sequential(
            nn.Linear(10, width),
            act(knobs, nn.SiLU),
            nn.Linear(width, width),
            act(knobs, nn.SiLU),
            nn.Linear(width, 2),
        )

    def forward(self, noisy: Tensor, time: Tensor) -> Tensor:
        waves = torch.cat([torch.sin(time * 2**i) for i in range(8)], -1)
        return self.net(torch.cat([noisy, waves], -1))


@family("diffusion", "activation", "width")
def diffusion(knobs: Knobs) -> Setup:
    """Predicts the noise in points of two moons."""

    def draw(generator: torch.Generator) -> Batch:
        angle = math.pi * torch.rand(128, generator=generator)
        side = (torch.rand(128, generator=generator) < 0.5).float()
        points = torch.stack([angle.cos() + side - 0.5, (1 - 2 * side) * angle.sin()], 1)
        time = torch.rand(128, 1, generator=generator)
        noise = torch.randn(128, 2, generator=generator)
        return Batch((points * (1 - time).sqrt() + noise * time.sqrt(), time), noise)

    return Setup(Denoiser(knobs), draw, F.mse_loss, "numbers", Recipe("adam", 3e-3), 400)


class Coupling(nn.Module):
    def __init__(self, width: int, knobs: Knobs, *, flip: bool) -> None:
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(1, width), act(knobs, nn.Tanh), nn.Linear(width, 2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = x.flip(1).chunk(2, 1) if self.flip else x.chunk(2, 1)
        scale, shift = self.net(first).chunk(2, 1)
        scale = scale.tanh()
        pair = (first, second * scale.exp() + shift)
        return torch.cat(pair[::-1] if self.flip else pair, 1), scale.squeeze(1)


class Flow(nn.Module):
    def __init__(self, knobs: Knobs) -> None:
        super().__init__()
        width = wide(knobs, 24)
        self.layers = nn.ModuleList(Coupling(width, knobs, flip=bool(i % 2)) for i in range(4 * knobs.depth))

    def forward(self, x: Tensor) -> Tensor:
        volume = torch.zeros(len(x))
        for layer in self.layers:
            x, change = layer(x)
            volume = volume + change
        return 0.5 * x.square().sum(1) + math.log(2 * math.pi) - volume


@family("flows", "depth", "activation", "width")
def normalizing_flow(knobs: Knobs) -> Setup:
    """The density of points on a curve, by coupling layers; the output is minus the log-likelihood."""

    def draw(generator: torch.Generator) -> Batch:
        x = torch.randn(128, 1, generator=generator)
        return Batch((torch.cat([x, x.square() - 1 + 0.2 * torch.randn(128, 1, generator=generator)], 1),))

    return Setup(Flow(knobs), draw, torch.mean, "own", Recipe("adam", 3e-3), 400, evaluate=torch.mean)


@family("densities", "activation", "width")
def mixture_density(knobs: Knobs) -> Setup:
    """A mixture of Gaussians for each input, with a likelihood written by hand."""
    width = wide(knobs, 32)
    model = nn.Sequential(nn.Linear(1, width), act(knobs, nn.Tanh), nn.Linear(width, 15))

    def loss(output: Tensor, y: Tensor) -> Tensor:
        weight, mean, log_std = output.chunk(3, 1)
        density = torch.distributions.Normal(mean, log_std.exp()).log_prob(y)
        return -torch.logsumexp(weight.log_softmax(1) + density, 1).mean()

    def draw(generator: torch.Generator) -> Batch:
        x = torch.randn(64, 1, generator=generator)
        sign = torch.randint(0, 2, (64, 1), generator=generator) * 2 - 1
        return Batch((x,), sign * (1 + x.sin()) + 0.1 * torch.randn(64, 1, generator=generator))

    return Setup(model, draw, loss, "own", Recipe("adam", 5e-3), 400, evaluate=loss)


class NeuralOde(nn.Module):
    """Euler steps of a learned flow, with time as a further input."""

    def __init__(self, knobs: Knobs) -> None:
        super().__init__()
        width = wide(knobs, 32)
        self.field = nn.Sequential(nn.Linear(3, width), act(knobs, nn.Tanh), nn.Linear(width, 2))
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        for i in range(12):
            time = torch.full((len(x), 1), i / 12)
            x = x + self.field(torch.cat([x, time], 1)) / 12
        return self.head(x)


@family("differential equations", "activation", "width")
def neural_ode(knobs: Knobs) -> Setup:
    """Separates the quadrants of a plane."""

    def draw(generator: torch.Generator) -> Batch:
        x = torch.randn(64, 2, generator=generator)
        return Batch((x,), (x[:, 0] * x[:, 1] > 0).long())

    return Setup(NeuralOde(knobs), draw, F.cross_entropy, "classes", Recipe("adam", 5e-3), 500)
