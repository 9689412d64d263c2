"""Small networks with attentions and routers, with and without bugs."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.wiring import VOCABULARY

Scaling = Literal[
    "none", "after", "before", "fused", "t5", "qk-norm", "cosine", "alibi", "rotary", "einsum", "bias"
]


class WrittenAttention(nn.Module):
    """Causal self-attention, written op by op, with a residual connection."""

    def __init__(self, scaling: Scaling, width: int = 128, heads: int = 2) -> None:
        super().__init__()
        self.scaling, self.heads, self.size = scaling, heads, width // heads
        self.norm = nn.LayerNorm(width)
        self.projections = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width)
        if scaling == "t5":
            nn.init.normal_(self.projections[0].weight, std=(width * self.size) ** -0.5)
            nn.init.normal_(self.projections[1].weight, std=width**-0.5)
        if scaling == "qk-norm":
            self.query_norm, self.key_norm = nn.LayerNorm(self.size), nn.LayerNorm(self.size)
        if scaling == "cosine":
            self.temperature = nn.Parameter(torch.tensor(10.0))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, self.size)
        q, k, v = (each(self.norm(x)).view(shape).transpose(1, 2) for each in self.projections)
        q, k = self._prepared(q, k)
        if self.scaling == "fused":
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = self._weights(q, k) @ v
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def _prepared(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if self.scaling == "before":
            return q * self.size**-0.5, k
        if self.scaling == "qk-norm":
            return self.query_norm(q), self.key_norm(k)
        if self.scaling == "cosine":
            return F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        if self.scaling == "rotary":
            half = self.size // 2
            angles = torch.arange(q.size(2))[:, None] * 1e4 ** (-torch.arange(half) / half)
            cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
            return tuple(  # type: ignore[return-value]
                each * cos + torch.cat((-each[..., half:], each[..., :half]), -1) * sin for each in (q, k)
            )
        return q, k

    def _weights(self, q: Tensor, k: Tensor) -> Tensor:
        is_einsum = self.scaling == "einsum"
        logits = torch.einsum("bhid,bhjd->bhij", q, k) if is_einsum else q @ k.transpose(-1, -2)
        length = q.size(2)
        if self.scaling in ("after", "alibi"):
            logits = logits / math.sqrt(self.size)
        if self.scaling == "cosine":
            logits = logits * self.temperature
        if self.scaling in ("alibi", "bias"):
            logits = logits - 0.1 * torch.arange(length).flip(0)
        return logits.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf).softmax(-1)


class AttentionNet(nn.Module):
    """A language model of two such attentions."""

    def __init__(self, scaling: Scaling, width: int = 128, heads: int = 2) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(32, width)
        self.layers = nn.Sequential(*(WrittenAttention(scaling, width, heads) for _ in range(2)))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.tokens(tokens) + self.positions(torch.arange(tokens.size(1)))))


Routing = Literal["scores", "index", "renormalized", "argmax", "corrected", "zero", "balanced", "dense"]


class Experts(nn.Module):
    """A mixture of experts; `routing` says how they are chosen and weighted."""

    def __init__(self, routing: Routing, width: int = 16, experts: int = 4, chosen: int = 1) -> None:
        super().__init__()
        self.routing, self.chosen = routing, chosen
        self.gate = nn.Linear(width, experts, bias=False)
        self.bodies = nn.ModuleList(nn.Sequential(nn.Linear(width, 32), nn.GELU()) for _ in range(experts))
        self.out = nn.Linear(32, width)
        self.register_buffer("correction", torch.zeros(1, experts))
        if routing == "zero":
            nn.init.zeros_(self.gate.weight)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.gate(x)
        scores = logits.softmax(-1)
        if self.routing == "index":
            chosen = scores.argmax(-1, keepdim=True)
            weights = torch.ones_like(chosen, dtype=x.dtype)
        elif self.routing == "argmax":
            weights, chosen = scores.max(-1, keepdim=True)
        elif self.routing == "renormalized":
            best, chosen = logits.topk(self.chosen, -1)
            weights = best.softmax(-1)
        elif self.routing == "corrected":
            chosen = (logits.sigmoid() + self.correction.squeeze(0)).topk(self.chosen, -1).indices
            weights = logits.sigmoid().gather(-1, chosen)
        else:
            weights, chosen = scores.topk(self.chosen, -1)
        share = F.one_hot(chosen, len(self.bodies)).float().sum(1).mean(0)
        balance = (share * scores.mean(0)).sum() if self.routing == "balanced" else torch.zeros(())
        return x + self.out(self._mixed(x, weights, chosen)), balance

    def _mixed(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        if self.routing == "dense":
            mask = torch.zeros(len(x), len(self.bodies)).scatter(1, chosen, weights)
            return (torch.stack([body(x) for body in self.bodies], 1) * mask[..., None]).sum(1)
        mixed = x.new_zeros(len(x), 32)
        for expert, body in enumerate(self.bodies):
            rows, places = torch.where(chosen == expert)
            if len(rows):
                mixed.index_add_(0, rows, body(x[rows]) * weights[rows, places, None])
        return mixed


class ExpertNet(nn.Module):
    """A classifier with two layers of experts, which returns its logits and the balance of the load."""

    def __init__(self, routing: Routing, **sizes: int) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.layers = nn.ModuleList(Experts(routing, **sizes) for _ in range(2))
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, balance = self.stem(x), torch.zeros(())
        for layer in self.layers:
            x, own = layer(x)
            balance = balance + own
        return self.head(x), balance


def expert_loss(output: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    return F.cross_entropy(output[0], targets) + 0.01 * output[1]
