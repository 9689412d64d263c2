"""Attention branches on fused SDPA, and positions: learned, sinusoidal and rotary."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.errors import InputError
from leadline.nn.deferred import make_linear
from leadline.nn.lean import Remade, lean_linear
from leadline.nn.options import Options
from leadline.nn.roles import RoleWeight

BASE = 10000.0  # longest wavelength / 2 pi (Vaswani et al. 2017, section 3.5; kept by RoPE, arXiv 2104.09864)


def sinusoidal_table(length: int, width: int) -> Tensor:
    r"""(length, width) table $\sqrt2\,\sin(t\,\omega_i)$ and $\sqrt2\,\cos(t\,\omega_i)$, $\omega_i =
    10000^{-2i/d}$.

    Sines in the even columns, cosines in the odd ones (Vaswani et al. 2017, section 3.5), times $\sqrt2$ so
    that the second moment is 1 as for every other part of the stream.
    """
    angles = _angles(length, width)
    table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :width]
    return table.float() * 2**0.5


def rotary_tables(length: int, head_width: int) -> tuple[Tensor, Tensor]:
    r"""(cos, sin) of $t\,\theta_i$, $\theta_i = 10000^{-2i/d_h}$, each (length, head_width), the two halves
    alike."""
    if head_width % 2:
        raise InputError(
            expected="an even number of features a head for rotary positions",
            got=f"width / heads = {head_width}",
            fix="choose width and heads so that width / heads is even, or other positions",
        )
    angles = _angles(length, head_width)
    both = torch.cat((angles, angles), dim=-1)
    return both.cos().float(), both.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    r"""`x` (batch, heads, time, head_width) turned in the planes $(x_i, x_{i+d_h/2})$ by its position's
    angles.

    Scalar products of turned vectors depend on the difference of positions alone (Su et al. 2021, arXiv
    2104.09864).
    """
    half = x.shape[-1] // 2
    swapped = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos + swapped * sin).to(x.dtype)


def _angles(length: int, width: int) -> Tensor:
    frequency = BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(length, dtype=torch.float64)[:, None] * frequency[None, :]


# Attention branches: self-attention with a packed QKV, and cross-attention; both on torch's fused SDPA.


class KeyValueCache:
    """Keys and values of the tokens seen so far by one attention, in buffers of the final length."""

    def __init__(self, shape: tuple[int, int, int, int], like: Tensor) -> None:
        self.keys = like.new_zeros(shape)
        self.values = like.new_zeros(shape)
        self.length = 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values up to and with the new ones."""
        end = self.length + keys.shape[2]
        self.keys[:, :, self.length : end] = keys
        self.values[:, :, self.length : end] = values
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]


class Context(NamedTuple):
    """What an attention needs besides the stream: who may look at whom, rotary angles, and a cache."""

    mask: Tensor | None = None
    causal: bool = False
    rotation: tuple[Tensor, Tensor] | None = None
    cache: KeyValueCache | None = None


EVERYONE = Context()


class SelfAttention(nn.Module):
    r"""$O\,\mathrm{softmax}(QK^\top/\sqrt{d_h})V$ over (batch, time, width), with Q, K, V in one packed
    matrix.

    `qk_norm` normalises queries and keys over the features of a head (Dehghani et al. 2023, arXiv
    2302.05442), which bounds the logits; `inner_norm` normalises before the output matrix (Magneto).
    """

    def __init__(self, width: int, heads: int, *, options: Options, inner_norm: bool = False) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.head_width = check_heads(width, heads)
        self.dropout = options.dropout
        self.qkv = make_linear(width, 3 * width, bias=options.bias)
        self.output = make_linear(width, width, bias=options.bias)
        self.norm_query = options.make_norm(self.head_width) if options.qk_norm else None
        self.norm_key = options.make_norm(self.head_width) if options.qk_norm else None
        self.norm_inner = options.make_norm(width) if inner_norm else None

    def forward(self, x: Tensor | Remade, context: Context = EVERYONE) -> Tensor:
        packed = lean_linear(self.qkv, x)
        batch, time, _ = packed.shape
        query, key, value = (_split_heads(part, self.heads) for part in packed.chunk(3, dim=-1))
        if self.norm_query is not None and self.norm_key is not None:
            query, key = self.norm_query(query), self.norm_key(key)
        if context.rotation is not None:
            query, key = rotate(query, *context.rotation), rotate(key, *context.rotation)
        if context.cache is not None:
            key, value = context.cache.append(key, value)
        y = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=context.mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=context.causal,
        )
        y = y.transpose(1, 2).reshape(batch, time, self.width)
        return _project(self, y)

    def role_weights(self) -> list[RoleWeight]:
        query, key, value = self.qkv.weight.chunk(3)
        return [
            RoleWeight(role="query", weight=query),
            RoleWeight(role="key", weight=key),
            RoleWeight(role="value", weight=value),
            RoleWeight(role="output", weight=self.output.weight),
        ]


class CrossAttention(nn.Module):
    """Attention of (batch, time, width) to a memory (batch, source time, width), with K and V in one packed
    matrix."""

    def __init__(self, width: int, heads: int, *, options: Options, inner_norm: bool = False) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.head_width = check_heads(width, heads)
        self.dropout = options.dropout
        self.query = make_linear(width, width, bias=options.bias)
        self.key_value = make_linear(width, 2 * width, bias=options.bias)
        self.output = make_linear(width, width, bias=options.bias)
        self.norm_query = options.make_norm(self.head_width) if options.qk_norm else None
        self.norm_key = options.make_norm(self.head_width) if options.qk_norm else None
        self.norm_inner = options.make_norm(width) if inner_norm else None

    def forward(self, x: Tensor | Remade, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        projected = lean_linear(self.query, x)
        batch, time, _ = projected.shape
        query = _split_heads(projected, self.heads)
        key, value = (_split_heads(part, self.heads) for part in self.key_value(memory).chunk(2, dim=-1))
        if self.norm_query is not None and self.norm_key is not None:
            query, key = self.norm_query(query), self.norm_key(key)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        return _project(self, y.transpose(1, 2).reshape(batch, time, self.width))

    def role_weights(self) -> list[RoleWeight]:
        key, value = self.key_value.weight.chunk(2)
        return [
            RoleWeight(role="query", weight=self.query.weight),
            RoleWeight(role="key", weight=key),
            RoleWeight(role="value", weight=value),
            RoleWeight(role="output", weight=self.output.weight),
        ]


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, time, width) as (batch, heads, time, width / heads), without a copy.

    Cutting a packed projection first and into heads second lets the backward pass join the three gradients in
    one copy; the other order needs two, 5 % of a small attention (benchmarks/blocks.py).
    """
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def _project(attention: SelfAttention | CrossAttention, y: Tensor) -> Tensor:
    """Inner norm if any, output matrix, dropout."""
    if attention.norm_inner is not None:
        y = attention.norm_inner(y)
    y = attention.output(y)
    return F.dropout(y, attention.dropout, attention.training) if attention.dropout else y


def check_heads(width: int, heads: int) -> int:
    """Features a head; raises unless `heads` divides `width`."""
    if heads < 1 or width < 1 or width % heads:
        near = [h for h in range(1, width + 1) if width % h == 0]
        best = min(near, key=lambda h: abs(h - heads)) if near else 1
        raise InputError(
            expected="heads that divide the width",
            got=f"width={width}, heads={heads}",
            fix=f"heads={best} divides {width}" if near else "pass a positive width",
        )
    return width // heads


def attention_mask(
    mask: Tensor | None, shape: tuple[int, int], *, causal: bool, name: str = "mask"
) -> Tensor | None:
    """The boolean mask for SDPA, True where a query may look at a key, or None when `causal` alone says it
    all.

    `mask` is None or (batch, time), True where there is a token and False where there is padding.
    """
    if mask is None:
        return None
    if tuple(mask.shape) != shape:
        raise InputError(
            expected=f"{name} of shape (batch, time) = {shape}, True where there is a token",
            got=f"shape {tuple(mask.shape)}",
            fix="pass one boolean a token of the input; causality is added by the model itself",
        )
    keys = mask.bool()[:, None, None, :]
    if not causal:
        return keys
    time = shape[1]
    return keys & torch.ones(time, time, dtype=torch.bool, device=mask.device).tril()
