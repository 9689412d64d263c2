"""Images of 12 by 12 pixels: gratings in noise."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.atlas.families.blocks import Lambda, Positions, Residual, act, norm, transformer_block, wide
from benchmarks.atlas.problem import Batch, Knobs, Recipe, Setup, family

SIDE = 12


def gratings(generator: torch.Generator, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Noisy gratings, their orientation (one of six) and their clean version."""
    kind = torch.randint(0, 6, (size,), generator=generator)
    angle = kind * math.pi / 6
    phase = 2 * math.pi * torch.rand(size, generator=generator)
    grid = torch.linspace(-1, 1, SIDE)
    along = (
        angle.cos()[:, None, None] * grid[None, :, None] + angle.sin()[:, None, None] * grid[None, None, :]
    )
    clean = torch.sin(6 * along + phase[:, None, None]).unsqueeze(1)
    return clean + 0.5 * torch.randn(clean.shape, generator=generator), kind, clean


def draw_classes(generator: torch.Generator) -> Batch:
    x, kind, _ = gratings(generator, 32)
    return Batch((x,), kind)


def _classifier(*layers: nn.Module, recipe: Recipe | None = None, steps: int = 250) -> Setup:
    return Setup(
        nn.Sequential(*layers),
        draw_classes,
        F.cross_entropy,
        "classes",
        recipe or Recipe("adam", 3e-3),
        steps,
    )


@family("images", "depth", "norms", "activation", "width")
def plain_convnet(knobs: Knobs) -> Setup:
    """Convolutions, batch norm and pooling, with SGD."""
    width = wide(knobs, 12)
    layers: list[nn.Module] = [nn.Conv2d(1, width, 3, padding=1), act(knobs)]
    for _ in range(2 * knobs.depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), norm(knobs, nn.BatchNorm2d(width)), act(knobs)]
    head = [nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(9 * width, 6)]
    return _classifier(*layers, *head, recipe=Recipe("sgd", 0.05, {"momentum": 0.9}))


@family("images", "activation", "width")
def lenet(knobs: Knobs) -> Setup:
    """Two convolutions with pooling and two linear layers, without norms."""
    width = wide(knobs, 8)
    return _classifier(
        nn.Conv2d(1, width, 3),
        act(knobs, nn.Tanh),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3),
        act(knobs, nn.Tanh),
        nn.Flatten(),
        nn.Linear(18 * width, 48),
        act(knobs, nn.Tanh),
        nn.Linear(48, 6),
    )


@family("images", "depth", "skips", "norms", "activation", "width")
def resnet(knobs: Knobs) -> Setup:
    """Residual blocks of two convolutions with batch norm."""
    width = wide(knobs, 12)

    def branch() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            norm(knobs, nn.BatchNorm2d(width)),
            act(knobs),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            norm(knobs, nn.BatchNorm2d(width)),
        )

    blocks = [nn.Sequential(Residual(branch(), knobs), act(knobs)) for _ in range(3 * knobs.depth)]
    stem, head = nn.Conv2d(1, width, 3, stride=2, padding=1), [nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return _classifier(
        stem,
        *blocks,
        *head,
        nn.Linear(4 * width, 6),
        recipe=Recipe("sgd", 0.05, {"momentum": 0.9}),
        steps=300,
    )


class Dense(nn.Module):
    """Appends new channels to its input."""

    def __init__(self, channels: int, growth: int, knobs: Knobs) -> None:
        super().__init__()
        self.new = nn.Sequential(
            norm(knobs, nn.BatchNorm2d(channels)), act(knobs), nn.Conv2d(channels, growth, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.new(x)], 1)


@family("images", "depth", "norms", "activation")
def densenet(knobs: Knobs) -> Setup:
    """Every layer reads all layers before it."""
    growth, layers = 6, 4 * knobs.depth
    blocks = [Dense(8 + growth * i, growth, knobs) for i in range(layers)]
    channels = 8 + growth * layers
    stem = nn.Conv2d(1, 8, 3, stride=2, padding=1)
    return _classifier(stem, *blocks, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, 6))


class Excite(nn.Module):
    """Squeeze and excitation: a gate for each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.Linear(width, width // 4), nn.ReLU(), nn.Linear(width // 4, width), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x.mean((2, 3)))[:, :, None, None]


@family("images", "depth", "skips", "norms", "activation", "width")
def mobile_convnet(knobs: Knobs) -> Setup:
    """Inverted bottlenecks with depthwise convolutions and channel gates."""
    width = wide(knobs, 12)

    def branch() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(width, 3 * width, 1, bias=False),
            norm(knobs, nn.BatchNorm2d(3 * width)),
            act(knobs, nn.Hardswish),
            nn.Conv2d(3 * width, 3 * width, 3, padding=1, groups=3 * width, bias=False),
            norm(knobs, nn.BatchNorm2d(3 * width)),
            act(knobs, nn.Hardswish),
            Excite(3 * width),
            nn.Conv2d(3 * width, width, 1, bias=False),
            norm(knobs, nn.BatchNorm2d(width)),
        )

    blocks = [Residual(branch(), knobs) for _ in range(2 * knobs.depth)]
    stem = nn.Conv2d(1, width, 3, stride=2, padding=1)
    return _classifier(stem, *blocks, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, 6))


@family("images", "depth", "skips", "norms", "activation", "width")
def convnext(knobs: Knobs) -> Setup:
    """Depthwise 7x7 convolutions, layer norm over channels, GELU, AdamW."""
    width = wide(knobs, 16)

    def branch() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(width, width, 7, padding=3, groups=width),
            norm(knobs, nn.GroupNorm(1, width)),
            nn.Conv2d(width, 3 * width, 1),
            act(knobs, nn.GELU),
            nn.Conv2d(3 * width, width, 1),
        )

    blocks = [Residual(branch(), knobs) for _ in range(3 * knobs.depth)]
    stem = nn.Conv2d(1, width, 2, stride=2)
    return _classifier(
        stem,
        *blocks,
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * width, 6),
        recipe=Recipe("adamw", 3e-3),
    )


def patches(width: int) -> list[nn.Module]:
    """Sixteen patches of 3 by 3 pixels as tokens."""
    return [nn.Conv2d(1, width, 3, stride=3), Lambda(lambda x: x.flatten(2).transpose(1, 2))]


@family("images", "depth", "skips", "norms", "activation", "width")
def vision_transformer(knobs: Knobs) -> Setup:
    """Patches, learned positions, pre-norm blocks, mean pooling."""
    width = wide(knobs, 24)
    blocks = [
        part for _ in range(2 * knobs.depth) for part in transformer_block(knobs, width, 2, causal=False)
    ]
    return _classifier(
        *patches(width),
        Positions(16, width),
        *blocks,
        norm(knobs, nn.LayerNorm(width)),
        Lambda(lambda x: x.mean(1)),
        nn.Linear(width, 6),
        recipe=Recipe("adamw", 2e-3),
        steps=400,
    )


class OverTokens(nn.Module):
    """Applies a module along the tokens instead of the channels."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


@family("images", "depth", "skips", "norms", "activation", "width")
def mixer(knobs: Knobs) -> Setup:
    """Linear layers over tokens and over channels in turn."""
    width = wide(knobs, 24)

    def mlp(size: int) -> nn.Module:
        return nn.Sequential(nn.Linear(size, 2 * size), act(knobs, nn.GELU), nn.Linear(2 * size, size))

    blocks: list[nn.Module] = []
    for _ in range(2 * knobs.depth):
        blocks += [
            Residual(nn.Sequential(norm(knobs, nn.LayerNorm(width)), inner), knobs)
            for inner in (OverTokens(mlp(16)), mlp(width))
        ]
    return _classifier(
        *patches(width),
        *blocks,
        Lambda(lambda x: x.mean(1)),
        nn.Linear(width, 6),
        recipe=Recipe("adam", 2e-3),
    )


class UNet(nn.Module):
    def __init__(self, knobs: Knobs) -> None:
        super().__init__()
        width = wide(knobs, 10)
        self.down = self._pair(1, width, knobs)
        self.bottom = self._pair(width, 2 * width, knobs)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last = self._pair(2 * width, width, knobs)
        self.head = nn.Conv2d(width, 1, 1)

    @staticmethod
    def _pair(inputs: int, outputs: int, knobs: Knobs) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            norm(knobs, nn.BatchNorm2d(outputs)),
            act(knobs),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            act(knobs),
        )

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down(x)
        coarse = self.bottom(F.max_pool2d(fine, 2))
        return self.head(self.last(torch.cat([fine, self.up(coarse)], 1)))


@family("dense prediction", "norms", "activation", "width")
def unet(knobs: Knobs) -> Setup:
    """Segmentation: which pixels of the clean grating are bright."""

    def draw(generator: torch.Generator) -> Batch:
        x, _, clean = gratings(generator, 16)
        return Batch((x,), (clean > 0.3).float())

    return Setup(UNet(knobs), draw, F.binary_cross_entropy_with_logits, "classes", Recipe("adam", 2e-3), 200)


@family("images", "norms", "activation", "width")
def angle_regression(knobs: Knobs) -> Setup:
    """Two numbers from an image: sine and cosine of twice the orientation."""
    width = wide(knobs, 12)

    def draw(generator: torch.Generator) -> Batch:
        x, kind, _ = gratings(generator, 32)
        angle = 2 * kind * math.pi / 6
        return Batch((x,), torch.stack([angle.sin(), angle.cos()], 1))

    model = nn.Sequential(
        nn.Conv2d(1, width, 3, stride=2, padding=1),
        norm(knobs, nn.GroupNorm(2, width)),
        act(knobs),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        norm(knobs, nn.GroupNorm(2, 2 * width)),
        act(knobs),
        nn.Flatten(),
        nn.Linear(18 * width, 2),
    )
    return Setup(model, draw, F.mse_loss, "numbers", Recipe("adam", 2e-3), 250)
