"""Attention branches on torch's fused attention, and sinusoidal and rotary positions."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.errors import InputError
from leadline.nn.lean import Recomputed, lean_linear
from leadline.nn.options import Options
from leadline.nn.roles import RoleWeight
from leadline.nn.uninitialized import make_linear

# Cited: Vaswani et al. 2017, section 3.5, and RoPE, arXiv 2104.09864: longest wavelength / 2 pi.
POSITION_BASE = 10000.0


def sinusoidal_table(length: int, width: int) -> Tensor:
    r"""Table (length, width) of $\sqrt2\,\sin(t\,\omega_i)$ and $\sqrt2\,\cos(t\,\omega_i)$.

    $\omega_i = 10000^{-2i/d}$, $t$ is the position and $d$ the width. Sines are in the even columns and
    cosines in the odd ones (Vaswani et al. 2017, section 3.5); the factor $\sqrt2$ makes the second moment 1, as for
    every other part of the stream.
    """
    angles = _angles(length, width)
    table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :width]
    return table.float() * 2**0.5


def rotary_tables(length: int, head_width: int) -> tuple[Tensor, Tensor]:
    r"""Cosines and sines of $t\,\theta_i$ with $\theta_i = 10000^{-2i/d_h}$, each (length, head_width).

    $t$ is the position and $d_h$ the head width; the two halves of a row are equal.
    """
    if head_width % 2:
        raise InputError(
            expected="an even number of features per head for rotary positions",
            got=f"width / heads = {head_width}",
            fix="choose width and heads so that width / heads is even, or other positions",
        )
    angles = _angles(length, head_width)
    both = torch.cat((angles, angles), dim=-1)
    return both.cos().float(), both.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    r"""`x` (batch, heads, time, head_width) rotated in the planes $(x_i, x_{i+d_h/2})$ by the angles of its position.

    Scalar products of rotated vectors depend only on the difference of positions (Su et al. 2021, arXiv 2104.09864).
    """
    half = x.shape[-1] // 2
    swapped = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos + swapped * sin).to(x.dtype)


def _angles(length: int, width: int) -> Tensor:
    frequency = POSITION_BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(length, dtype=torch.float64)[:, None] * frequency[None, :]


# Attention branches: self-attention with a packed QKV, and cross-attention; both on torch's fused SDPA.


class KeyValueCache:
    """Keys and values of all earlier tokens of one attention, in buffers of the final length."""

    def __init__(self, shape: tuple[int, int, int, int], like: Tensor) -> None:
        self.keys = like.new_zeros(shape)
        self.values = like.new_zeros(shape)
        self.length = 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values, and return all of them."""
        end = self.length + keys.shape[2]
        self.keys[:, :, self.length : end] = keys
        self.values[:, :, self.length : end] = values
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]


class SharedValues:
    """The values of the first self-attention of a stack during one pass, which later ones mix with their own."""

    def __init__(self) -> None:
        self.first: Tensor | None = None


class Context(NamedTuple):
    """The inputs of an attention other than the stream: its mask, rotary angles, cache and the first values."""

    mask: Tensor | None = None
    causal: bool = False
    rotation: tuple[Tensor, Tensor] | None = None
    cache: KeyValueCache | None = None
    shared: SharedValues | None = None


NO_CONTEXT = Context()


class SelfAttention(nn.Module):
    r"""Self-attention $O\,\mathrm{softmax}(QK^\top/\sqrt{d_h})V$ over (batch, time, width).

    Q, K and V come from one packed matrix, O is the output matrix and $d_h$ the width of a head.

    `qk_norm` normalizes queries and keys over the features of a head (Dehghani et al. 2023, arXiv
    2302.05442), which bounds the logits; `qkv_norm` normalizes the values too (HybridNorm); `inner_norm` normalizes
    before the output matrix (Magneto). `value_share` is the share of the first self-attention's values in its own
    (value residual); the first one has `is_first`.
    """

    def __init__(  # noqa: PLR0913  (one switch for each scheme that changes the attention)
        self,
        width: int,
        heads: int,
        *,
        options: Options,
        inner_norm: bool = False,
        qkv_norm: bool = False,
        value_share: float = 0.0,
        is_first: bool = False,
    ) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.value_share, self.is_first = value_share, is_first
        self.head_width = check_heads(width, heads)
        self.dropout = options.dropout
        self.qkv = make_linear(width, 3 * width, bias=options.bias)
        self.output = make_linear(width, width, bias=options.bias)
        has_norms = options.qk_norm or qkv_norm
        self.norm_query = options.make_norm(self.head_width) if has_norms else None
        self.norm_key = options.make_norm(self.head_width) if has_norms else None
        self.norm_value = options.make_norm(self.head_width) if qkv_norm else None
        self.norm_inner = options.make_norm(width) if inner_norm else None

    def forward(self, x: Tensor | Recomputed, context: Context = NO_CONTEXT) -> Tensor:
        packed = lean_linear(self.qkv, x)
        batch, time, _ = packed.shape
        query, key, value = (_split_heads(part, self.heads) for part in packed.chunk(3, dim=-1))
        if self.norm_query is not None and self.norm_key is not None:
            query, key = self.norm_query(query), self.norm_key(key)
        if self.norm_value is not None:
            value = self.norm_value(value)
        if self.value_share and context.shared is not None:
            value = self._mix(value, context.shared)
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

    def _mix(self, value: Tensor, shared: SharedValues) -> Tensor:
        """The values of this layer, mixed with those of the first one, which are stored here if this is it."""
        if self.is_first or shared.first is None:
            shared.first = value
            return value
        return (1 - self.value_share) * value + self.value_share * shared.first

    def role_weights(self) -> list[RoleWeight]:
        """Mixed with independent values of equal size, the values keep $(1-s)^2 + s^2$ of their second moment."""
        query, key, value = self.qkv.weight.chunk(3)
        share = 0.0 if self.is_first else self.value_share
        mixed = (1 - share) ** 2 + share**2
        return [
            RoleWeight(role="query", weight=query),
            RoleWeight(role="key", weight=key),
            RoleWeight(role="value", weight=value),
            RoleWeight(role="output", weight=self.output.weight, second_moment=mixed),
        ]


class CrossAttention(nn.Module):
    """Attention of (batch, time, width) to a memory (batch, source time, width); K and V share a packed matrix."""

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

    def forward(self, x: Tensor | Recomputed, memory: Tensor, mask: Tensor | None = None) -> Tensor:
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

    Splitting a packed projection before its heads lets the backward pass join the three gradients in one copy; the
    other order needs two, which costs 5 % of a small attention (benchmarks/blocks.py).
    """
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def _project(attention: SelfAttention | CrossAttention, y: Tensor) -> Tensor:
    """Apply the inner norm, if any, the output matrix and dropout."""
    if attention.norm_inner is not None:
        y = attention.norm_inner(y)
    y = attention.output(y)
    return F.dropout(y, attention.dropout, attention.training) if attention.dropout else y


def check_heads(width: int, heads: int) -> int:
    """Features per head; raises unless `heads` divides `width`."""
    if heads < 1 or width < 1 or width % heads:
        near = [h for h in range(1, width + 1) if width % h == 0]
        best = min(near, key=lambda h: abs(h - heads)) if near else 1
        raise InputError(
            expected="heads that divide the width",
            got=f"width={width}, heads={heads}",
            fix=f"pass heads={best}, which divides {width}" if near else "pass a positive width",
        )
    return width // heads


def attention_mask(
    mask: Tensor | None, shape: tuple[int, int], *, causal: bool, name: str = "mask"
) -> Tensor | None:
    """The boolean mask for fused attention, True where a query may attend to a key; None if no mask is needed.

    `mask` is None or (batch, time), True where there is a token and False where there is padding.
    """
    if mask is None:
        return None
    if tuple(mask.shape) != shape:
        raise InputError(
            expected=f"{name} of shape (batch, time) = {shape}, True where there is a token",
            got=f"shape {tuple(mask.shape)}",
            fix="pass one boolean per token of the input; the model adds causality itself",
        )
    keys = mask.bool()[:, None, None, :]
    if not causal:
        return keys
    time = shape[1]
    return keys & torch.ones(time, time, dtype=torch.bool, device=mask.device).tril()
