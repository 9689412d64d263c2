"""A letter model of post-norm or pre-norm `nn.TransformerEncoderLayer`s, a common starting point."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import leadline
from examples.data import letter_loss, letters, text_batches

WIDTH = 32
LENGTH = 16  # letters per sequence


class LetterModel(nn.Module):
    """An embedding, a stack of layers with a causal mask, and a linear head."""

    def __init__(self, body: nn.Module, *, embedding_std: float = 1.0) -> None:
        super().__init__()
        vocabulary = letters()[1]
        self.embed = nn.Embedding(vocabulary, WIDTH)
        nn.init.normal_(self.embed.weight, std=embedding_std)
        self.position = nn.Parameter(0.02 * embedding_std * torch.randn(LENGTH, WIDTH))
        self.body = body
        self.head = nn.Linear(WIDTH, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(self.embed(tokens) + self.position, self.mask))


class Stack(nn.Module):
    """Layers that are built one by one; unlike those of `nn.TransformerEncoder`, they start with different weights."""

    def __init__(self, layers: int, *, norm_first: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(encoder_layer(norm_first=norm_first) for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH) if norm_first else nn.Identity()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.norm(x)


def encoder_layer(*, norm_first: bool) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(
        WIDTH, nhead=2, dim_feedforward=2 * WIDTH, dropout=0.0, batch_first=True, norm_first=norm_first
    )


def letter_case(model: nn.Module, optimizer: torch.optim.Optimizer, rows: int = 16) -> leadline.Case:
    batches = text_batches(letters()[0], 120, rows, LENGTH)
    return leadline.Case(model, *batches[0], letter_loss, optimizer, batches)
