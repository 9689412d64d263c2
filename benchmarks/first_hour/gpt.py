"""A small GPT whose parts can be changed one at a time, with the loss inside or outside of the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.first_hour.text import CONTEXT, VOCABULARY

# Derived: GPT-2 draws weights with 0.02 at a width of 768; the same gain at a width of 32 needs sqrt(768/32) times it.
BASE_STD = 0.1

Activation = Callable[[Tensor], Tensor]


def identity(value: Tensor) -> Tensor:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The shape of one network, and everything in its forward pass that a variant changes."""

    width: int = 32
    layers: int = 4
    heads: int = 4
    activation: Activation = F.gelu
    norm: Literal["pre", "post", "none"] = "pre"
    norm_layer: Callable[..., nn.Module] = nn.LayerNorm
    norm_eps: float = 1e-5
    final_norm: bool = True
    residual: bool = True
    branch_gain: float = 1.0
    attention_gain: float = 1.0
    """Factor on the usual 1/sqrt(width of a head)."""
    embedding_gain: float = 1.0
    position_gain: float = 1.0
    dropout: float = 0.0
    tied: bool = False
    bias: bool = True
    detach_after: int | None = None
    """The block whose output is detached from what computed it."""
    on_logits: Activation = identity
    std: float | None = BASE_STD
    """Standard deviation of all weights; None: what torch's layers draw by default."""


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.heads, self.dropout = network.heads, network.dropout
        self.scale = network.attention_gain / math.sqrt(network.width // network.heads)
        self.qkv = nn.Linear(network.width, 3 * network.width, bias=network.bias)
        self.out = nn.Linear(network.width, network.width, bias=network.bias)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale, dropout_p=dropout)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))


class Feedforward(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.up = nn.Linear(network.width, 4 * network.width, bias=network.bias)
        self.down = nn.Linear(4 * network.width, network.width, bias=network.bias)
        self.activation = network.activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class Block(nn.Module):
    """Attention and feedforward, each in a residual branch."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        normed = network.norm != "none"
        self.norm1 = _norm(network) if normed else nn.Identity()
        self.attention = Attention(network)
        self.norm2 = _norm(network) if normed else nn.Identity()
        self.feedforward = Feedforward(network)
        self.drop = nn.Dropout(network.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self._branch(x, self.attention, self.norm1)
        return self._branch(x, self.feedforward, self.norm2)

    def _branch(self, x: Tensor, branch: nn.Module, norm: nn.Module) -> Tensor:
        post = self.network.norm == "post"
        out = self.drop(branch(x if post else norm(x)))
        if self.network.branch_gain != 1.0:
            out = out * self.network.branch_gain
        if self.network.residual:
            out = x + out
        return norm(out) if post else out


class GPT(nn.Module):
    """`model(idx)` returns the logits."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        self.tokens = nn.Embedding(VOCABULARY, network.width)
        self.positions = nn.Embedding(CONTEXT, network.width)
        self.drop = nn.Dropout(network.dropout)
        self.blocks = nn.ModuleList(Block(network) for _ in range(network.layers))
        self.final_norm = _norm(network) if network.final_norm else nn.Identity()
        self.head = nn.Linear(network.width, VOCABULARY, bias=False)
        if network.tied:
            self.head.weight = self.tokens.weight
        if network.std is not None:
            draw_weights(self, network.std)

    def forward(self, idx: Tensor) -> Tensor:
        network = self.network
        positions = self.positions(torch.arange(idx.shape[1], device=idx.device))
        if network.position_gain != 1.0:
            positions = positions * network.position_gain
        x = self.tokens(idx) + positions
        if network.embedding_gain != 1.0:
            x = x * network.embedding_gain
        x = self.drop(x)
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number == network.detach_after:
                x = x.detach()
        return network.on_logits(self.head(self.final_norm(x)))


class GPTWithLoss(GPT):
    """`model(idx, targets)` returns the logits and the loss, as nanoGPT does."""

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        logits = super().forward(idx)
        return logits, token_loss(logits, targets)


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def second(output: tuple[Tensor, Tensor]) -> Tensor:
    """Return the loss of a model that returns (logits, loss)."""
    return output[1]


def draw_weights(model: nn.Module, std: float) -> None:
    """Draw all weights of linear layers and embeddings from a normal distribution, and set biases to zero."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def _norm(network: Network) -> nn.Module:
    return network.norm_layer(network.width, eps=network.norm_eps)
