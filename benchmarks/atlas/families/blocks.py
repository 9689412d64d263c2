"""Parts that several families share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.atlas.problem import Knobs


class Residual(nn.Module):
    """A branch with a skip around it, unless the knobs leave skips out."""

    def __init__(self, branch: nn.Module, knobs: Knobs) -> None:
        super().__init__()
        self.branch, self.skips = branch, knobs.skips

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x) if self.skips else self.branch(x)


class Attention(nn.Module):
    """Multi-head self-attention with its own matrices."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Lambda(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def act(knobs: Knobs, own: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    return (knobs.activation or own)()


def norm(knobs: Knobs, own: nn.Module) -> nn.Module:
    return own if knobs.norms else nn.Identity()


def wide(knobs: Knobs, width: int) -> int:
    """The width times the knob, in multiples of four."""
    return max(4, round(width * knobs.width / 4) * 4)


def transformer_block(knobs: Knobs, width: int, heads: int, *, causal: bool) -> list[nn.Module]:
    """Attention and feed-forward, pre-norm."""
    mlp = nn.Sequential(nn.Linear(width, 2 * width), act(knobs, nn.GELU), nn.Linear(2 * width, width))
    return [
        Residual(
            nn.Sequential(norm(knobs, nn.LayerNorm(width)), Attention(width, heads, causal=causal)), knobs
        ),
        Residual(nn.Sequential(norm(knobs, nn.LayerNorm(width)), mlp), knobs),
    ]


class Positions(nn.Module):
    """Adds a learned vector to each position."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(0.02 * torch.randn(length, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.vectors[: x.shape[1]]
