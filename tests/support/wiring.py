"""Small networks with and without wiring bugs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, LENGTH, SAMPLES = 50, 16, 4


class TinyGPT(nn.Module):
    """A language model of two layers, called as `model(tokens)` or `model(tokens, targets)`."""

    def __init__(self, *, causal: bool = True, positions: bool = True, layers: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 32)
        self.positions = nn.Embedding(64, 32) if positions else None
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(32, VOCABULARY)
        self.causal = causal

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Any:
        hidden = self.tokens(tokens)
        if self.positions is not None:
            hidden = hidden + self.positions(torch.arange(tokens.size(1)))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1)) if self.causal else None
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask)
        logits = self.head(hidden)
        if targets is None:
            return logits
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def text(offset: int = 1) -> tuple[Tensor, Tensor]:
    """Random tokens, and targets that are `offset` positions ahead."""
    torch.manual_seed(0)
    tokens = torch.randint(0, VOCABULARY, (SAMPLES, LENGTH + offset))
    return tokens[:, :LENGTH].clone(), tokens[:, offset:].clone()


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def own_loss(output: tuple[Tensor, Tensor]) -> Tensor:
    return output[1]


class Function(nn.Module):
    """A module around layers and a function of them and the inputs."""

    def __init__(self, forward: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self._call = forward

    def forward(self, *inputs: Tensor) -> Any:
        return self._call(self, *inputs)


def mlp(outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, outputs))


def features() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(32, 8)


def classes() -> Tensor:
    torch.manual_seed(2)
    return torch.randint(0, 3, (32,))
