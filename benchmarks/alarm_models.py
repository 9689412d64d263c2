"""Small networks whose blocks report what a watch samples: dead units, branch over skip, attention logits."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Reading = dict[str, float]


def dead_share(x: Tensor) -> float:
    """Return the share of units (last or channel axis) that are zero on the whole batch."""
    units = x.transpose(1, -1).flatten(0, -2) if x.dim() == 4 else x.flatten(0, -2)
    return float((units <= 0).all(0).float().mean())


class Layer(nn.Module):
    """Linear and ReLU."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        super().__init__()
        self.linear = nn.Linear(incoming, outgoing)
        nn.init.kaiming_normal_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.linear(x))

    def read(self, x: Tensor) -> Reading:
        return {"dead": dead_share(self(x))}


class ConvLayer(nn.Module):
    """Convolution, batch norm and ReLU: its weight is scale-invariant."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(incoming, outgoing, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outgoing)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))

    def read(self, x: Tensor) -> Reading:
        return {"dead": dead_share(self(x))}


class Residual(nn.Module):
    """A skip and a branch of two layers; with or without a norm before the branch."""

    def __init__(self, width: int, *, norm: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.one, self.two = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def branch(self, x: Tensor) -> Tensor:
        return self.two(F.relu(self.one(self.norm(x))))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)

    def read(self, x: Tensor) -> Reading:
        hidden = F.relu(self.one(self.norm(x)))
        return {"branch_skip": _rms(self.branch(x)) / _rms(x), "dead": dead_share(hidden)}


class Attending(nn.Module):
    """A pre-norm or post-norm Transformer block with causal attention."""

    def __init__(self, width: int, heads: int, *, post: bool) -> None:
        super().__init__()
        self.heads, self.post = heads, post
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.one, self.two = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        return q, k, v

    def attend(self, x: Tensor) -> Tensor:
        mixed = F.scaled_dot_product_attention(*self.split(x), is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def feed(self, x: Tensor) -> Tensor:
        return self.two(F.gelu(self.one(x)))

    def forward(self, x: Tensor) -> Tensor:
        if self.post:
            x = self.norms[0](x + self.attend(x))
            return self.norms[1](x + self.feed(x))
        x = x + self.attend(self.norms[0](x))
        return x + self.feed(self.norms[1](x))

    def read(self, x: Tensor) -> Reading:
        inner = x if self.post else self.norms[0](x)
        q, k, _ = self.split(inner)
        logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        hidden = torch.ones_like(logits[0, 0], dtype=torch.bool).triu(1)
        weights = logits.masked_fill(hidden, -math.inf).softmax(-1)
        entropy = -(weights * weights.clamp_min(1e-30).log()).sum(-1).mean()
        return {
            "attention_logit": float(logits.masked_fill(hidden, 0.0).abs().max()),
            "attention_entropy": float(entropy),
            "branch_skip": _rms(self.attend(inner)) / _rms(x),
        }


class Network(nn.Module):
    """A stem, blocks, and a head."""

    def __init__(self, stem: nn.Module, blocks: list[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = stem, nn.ModuleList(blocks), head
        self.unused = nn.Linear(4, 4)
        self.unused.requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    @torch.no_grad()
    def read(self, x: Tensor) -> list[Reading]:
        """Return what each block reports about itself. The running statistics of batch norms are not changed."""
        kept = {name: value.clone() for name, value in self.named_buffers()}
        x, found = self.stem(x), []
        for block in self.blocks:
            found.append(block.read(x))
            x = block(x)
        for name, value in self.named_buffers():
            value.copy_(kept[name])
        return found


class Embed(nn.Module):
    """Embeds characters and positions."""

    def __init__(self, characters: int, width: int, length: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.characters(x) + self.positions


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def build(family: str, *, depth: int, width: int, classes: int, length: int) -> Network:
    """Return a network of one of the families. Digits have shape (batch, 64), text (batch, length)."""
    head = nn.Linear(width, classes)
    if family == "mlp":
        return Network(nn.Linear(64, width), [Layer(width, width) for _ in range(depth)], head)
    if family == "conv":
        stem = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, width, 3, padding=1))
        pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
        return Network(stem, [ConvLayer(width, width) for _ in range(depth)], pool)
    if family.startswith("residual"):
        norm = family == "residual"
        blocks = [Residual(width, norm=norm) for _ in range(depth)]
        ending = nn.Sequential(nn.LayerNorm(width), head) if norm else head
        return Network(nn.Linear(64, width), blocks, ending)
    post = family == "post-norm"
    stack = [Attending(width, 4, post=post) for _ in range(depth)]
    return Network(Embed(classes, width, length), stack, nn.Sequential(nn.LayerNorm(width), head))
