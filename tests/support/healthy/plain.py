"""Healthy networks of torch's own layers: perceptrons, convolutions, recurrences, parts frozen or tied."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline import nn as blocks
from leadline.case import Case

CLASSES = 10


def case(model: nn.Module, x: Tensor, name: str = "adam", lr: float = 1e-3, classes: int = CLASSES) -> Case:
    targets = torch.randint(0, classes, (len(x),))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = {
        "adam": lambda: torch.optim.Adam(trained, lr=lr),
        "adamw": lambda: torch.optim.AdamW(trained, lr=lr, weight_decay=0.01),
        "sgd": lambda: torch.optim.SGD(trained, lr=lr, momentum=0.9, weight_decay=5e-4),
    }[name]()
    return Case(model, x, targets, F.cross_entropy, optimizer)


def mlp(
    depth: int, width: int, activation: type[nn.Module], norm: type[nn.Module] | None = None, he: bool = False
) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index in range(depth):
        linear = nn.Linear(64 if index == 0 else width, width)
        if he:
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
            nn.init.zeros_(linear.bias)
        layers += [linear, *([norm(width)] if norm else []), activation()]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def dropped(depth: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(64, 64), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Dropout(0.5), nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, CLASSES))


def convnet(norm: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), *([nn.BatchNorm2d(outputs)] if norm else [])]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 4, CLASSES))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], layers: int = 1) -> None:
        super().__init__()
        self.cell = kind(16, 32, num_layers=layers, batch_first=True)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


class Encoder(nn.Module):
    """torch's own Transformer encoder, which copies the layer it is given."""

    def __init__(self, layers: int, *, norm_first: bool, dropout: float = 0.1) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            32, 4, 64, dropout=dropout, batch_first=True, norm_first=norm_first, activation="gelu"
        )
        self.embed = nn.Linear(16, 32)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).mean(1))


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(16, 32), nn.Linear(32, CLASSES)
        self.attention, self.norm = nn.MultiheadAttention(32, 4, batch_first=True), nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = self.norm(x + self.attention(x, x, x)[0])
        return self.head(x[:, 0])


class LowRank(nn.Module):
    """A frozen layer with a parallel LoRA whose second factor starts at zero."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.down), self.up)


def lora() -> nn.Sequential:
    model = mlp(4, 64, nn.ReLU, he=True)
    return nn.Sequential(*(LowRank(m) if isinstance(m, nn.Linear) else m for m in model[:-1]), model[-1])


def trained(model: nn.Module, width: int = 64) -> nn.Module:
    """The model after a short training, so that its weights are no longer those of an initializer."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, width, generator=generator)
    y = (x[:, :4] > 0).long().sum(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.zero_grad()
    return model


def frozen() -> nn.Sequential:
    model = mlp(6, 64, nn.ReLU, nn.LayerNorm, he=True)
    trained(model)
    nn.init.xavier_normal_(model[-1].weight)  # a new head
    for layer in model[:-1]:
        layer.requires_grad_(requires_grad=False)
    return model


def feature_extractor() -> nn.Module:
    class Extracts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = (
                trained(mlp(3, 64, nn.ReLU, he=True))[:-1].requires_grad_(requires_grad=False),
                nn.Linear(64, 10),
            )

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                features = self.body(x)
            return self.head(features)

    return Extracts()


def generator_case() -> Case:
    """The generator's step of a GAN: the discriminator is frozen, the loss is that of fooling it."""
    generator = nn.Sequential(nn.Linear(8, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.Tanh())
    discriminator = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)).requires_grad_(
        requires_grad=False
    )
    model = nn.Sequential(generator, discriminator)
    optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    loss = F.binary_cross_entropy_with_logits
    return Case(model, torch.randn(32, 8), torch.ones(32, 1), loss, optimizer)


def discriminator_case() -> Case:
    model = nn.Sequential(
        nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999))
    loss = F.binary_cross_entropy_with_logits
    return Case(model, torch.randn(32, 64), torch.randint(0, 2, (32, 1)).float(), loss, optimizer)


def regression() -> Case:
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Case(model, torch.randn(32, 16), torch.randn(32, 1), F.mse_loss, optimizer)


def autoencoder() -> Case:
    model = nn.Sequential(
        nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8), nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64)
    )
    x = torch.randn(32, 64)
    return Case(model, x, x.clone(), F.mse_loss, torch.optim.Adam(model.parameters(), lr=1e-3))


def vectors(count: int = 32) -> Tensor:
    return torch.randn(count, 64)


def images(count: int = 8) -> Tensor:
    return torch.randn(count, 3, 16, 16)


def series(count: int = 8, steps: int = 12) -> Tensor:
    return torch.randn(count, steps, 16)


HEALTHY: dict[str, Callable[[], Case]] = {
    "linear": lambda: case(nn.Linear(64, 10), vectors()),
    "mlp relu 3": lambda: case(mlp(3, 64, nn.ReLU), vectors()),
    "mlp relu he 8": lambda: case(mlp(8, 64, nn.ReLU, he=True), vectors(), "sgd", 0.02),
    "mlp relu he 12": lambda: case(mlp(12, 128, nn.ReLU, he=True), vectors(), "adamw"),
    "mlp tanh 4": lambda: case(mlp(4, 64, nn.Tanh), vectors()),
    "mlp gelu 4": lambda: case(mlp(4, 64, nn.GELU), vectors()),
    "mlp sigmoid 2": lambda: case(mlp(2, 64, nn.Sigmoid), vectors()),
    "mlp silu 3": lambda: case(mlp(3, 64, nn.SiLU), vectors()),
    "mlp selu 6": lambda: case(mlp(6, 64, nn.SELU), vectors()),
    "layer norm relu 10": lambda: case(mlp(10, 64, nn.ReLU, nn.LayerNorm), vectors()),
    "batch norm relu 8": lambda: case(mlp(8, 64, nn.ReLU, nn.BatchNorm1d), vectors(), "sgd", 0.05),
    "dropout": lambda: case(dropped(2), vectors()),
    "tiny batch": lambda: case(mlp(3, 64, nn.ReLU, he=True), vectors(2)),
    "batch of one": lambda: case(mlp(3, 64, nn.ReLU, he=True), vectors(1)),
    "convnet": lambda: case(convnet(), images()),
    "convnet without norm": lambda: case(convnet(norm=False), images()),
    "rnn": lambda: case(Recurrent(nn.RNN), series()),
    "lstm": lambda: case(Recurrent(nn.LSTM, 2), series()),
    "gru": lambda: case(Recurrent(nn.GRU), series()),
    "torch encoder pre 6": lambda: case(Encoder(6, norm_first=True), series()),
    "torch encoder post 4": lambda: case(Encoder(4, norm_first=False), series()),
    "multihead attention": lambda: case(SelfAttention(), series()),
    "lora": lambda: case(lora(), vectors()),
    "frozen backbone": lambda: case(frozen(), vectors()),
    "feature extractor": lambda: case(feature_extractor(), vectors()),
    "gan generator": generator_case,
    "gan discriminator": discriminator_case,
    "regression": regression,
    "autoencoder": autoencoder,
    "resnet": lambda: case(blocks.ResNet(3, 16, 8, CLASSES), images()),
}
