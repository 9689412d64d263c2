"""Transformer blocks, their feed-forward branches, the stack that runs them, and the Encoder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.utils.checkpoint import checkpoint

from leadline.errors import InputError
from leadline.nn.activations import find_activation, gaussian_moments
from leadline.nn.attention import (
    NO_CONTEXT,
    Context,
    CrossAttention,
    KeyValueCache,
    SelfAttention,
    SharedValues,
    attention_mask,
    rotary_tables,
    sinusoidal_table,
)
from leadline.nn.experts import MixtureOfExperts
from leadline.nn.lean import Recomputed, lean_feed_forward, lean_linear
from leadline.nn.options import Options
from leadline.nn.residual import Residual
from leadline.nn.roles import RoleWeight, fill_branch_
from leadline.nn.scheme import Layout, Scheme, check_depth
from leadline.nn.schemes import find_scheme
from leadline.nn.streams import State, make_scheme_norm, make_stream_end, open_stream
from leadline.nn.uninitialized import make_linear


class FeedForward(nn.Module):
    r"""$W_2\,\phi(W_1 x)$, or $W_2(\mathrm{SiLU}(W_g x) \odot W_v x)$ for `swiglu` with $W_g, W_v$ in one matrix."""

    def __init__(self, width: int, *, options: Options, inner_norm: bool = False) -> None:
        super().__init__()
        hidden = options.hidden_width(width)
        self.width, self.gated, self.dropout = width, options.feed_forward == "swiglu", options.dropout
        self.activation = "silu" if self.gated else options.feed_forward
        self.fc1 = make_linear(width, 2 * hidden if self.gated else hidden, bias=options.bias)
        self.fc2 = make_linear(hidden, width, bias=options.bias)
        self.norm_inner = options.make_norm(hidden) if inner_norm else None
        self.lean = options.lean
        self._function = find_activation(self.activation)

    def forward(self, x: Tensor | Recomputed) -> Tensor:
        if self.lean and self.norm_inner is None:
            y = lean_feed_forward(self.fc1, self._activate, self.fc2, x)
        else:
            h = self._activate(lean_linear(self.fc1, x))
            y = self.fc2(h if self.norm_inner is None else self.norm_inner(h))
        return F.dropout(y, self.dropout, self.training) if self.dropout else y

    def _activate(self, h: Tensor) -> Tensor:
        if not self.gated:
            return self._function(h)
        gate, value = h.chunk(2, dim=-1)
        return F.silu(gate) * value

    def role_weights(self) -> list[RoleWeight]:
        """A gate and a value of unit variance multiply to $E[\\phi^2] \\cdot 1$, so both kinds feed fc2 with
        $E[\\phi^2]$."""
        fed = 1.0 if self.norm_inner is not None else gaussian_moments(self.activation).square
        first = self.fc1.weight.chunk(2) if self.gated else (self.fc1.weight,)
        inner = [RoleWeight(role="fc1", weight=weight) for weight in first]
        return [*inner, RoleWeight(role="fc2", weight=self.fc2.weight, second_moment=fed)]


# Transformer blocks, the stack that runs them, and the Encoder.

NO_POSITIONS = Options(positions="none")
# Derived: the sum of two unit signals times this has a unit second moment.
SUM_SCALE = math.sqrt(0.5)


class TransformerBlock(nn.Module):
    """Self-attention, cross-attention if there is a memory, and a feed-forward, each on a `Residual`."""

    def __init__(self, attention: Residual, cross: Residual | None, feed_forward: Residual) -> None:
        super().__init__()
        self.attention = attention
        self.cross = cross
        self.feed_forward = feed_forward
        self.bypass = feed_forward.scheme.block_bypass

    def forward(self, x: State, context: Context = NO_CONTEXT, memory: Sequence[Tensor | None] = ()) -> State:
        y = self.attention(x, context)
        if self.cross is not None:
            y = self.cross(y, *memory)
        out: State = self.feed_forward(y, bypass=x) if self.bypass else self.feed_forward(y)
        return out


class Stack(nn.Module):
    """Blocks and the final norm, if the scheme has one, with optional checkpointing and caches."""

    def __init__(
        self, blocks: Sequence[TransformerBlock], scheme: Scheme, options: Options, width: int
    ) -> None:
        super().__init__()
        self.scheme = scheme
        self.blocks = nn.ModuleList(blocks)
        make_norm = make_scheme_norm(scheme, options.make_norm)
        self.stream_end = make_stream_end(scheme, width, make_norm)
        self.final_norm = make_norm(width) if scheme.final_norm else None
        self.checkpoint_every, self.is_random = options.checkpoint_every, options.dropout > 0

    def forward(
        self,
        x: Tensor,
        context: Context = NO_CONTEXT,
        memory: Sequence[Tensor | None] = (),
        caches: Sequence[KeyValueCache] | None = None,
    ) -> Tensor:
        if self.scheme.value_share:
            context = context._replace(shared=SharedValues())
        state = self._run_blocks(open_stream(self.scheme, x), context, memory, caches)
        y: Any = state if self.stream_end is None else self.stream_end(state)
        out: Tensor = y if self.final_norm is None else self.final_norm(y)
        return out

    def _run_blocks(
        self,
        x: State,
        context: Context,
        memory: Sequence[Tensor | None],
        caches: Sequence[KeyValueCache] | None,
    ) -> State:
        if caches is not None:
            for block, cache in zip(self.blocks, caches, strict=True):
                x = block(x, context._replace(cache=cache), memory)
        elif self.checkpoint_every and torch.is_grad_enabled():
            x = self._run_checkpointed(x, context, memory)
        else:
            for block in self.blocks:
                x = block(x, context, memory)
        return x

    def _run_checkpointed(self, x: State, context: Context, memory: Sequence[Tensor | None]) -> State:
        """Run segments with checkpoints, except the last, which would be recomputed at once."""
        *earlier, last = range(0, len(self.blocks), self.checkpoint_every)
        for start in earlier:
            x = checkpoint(
                self._run,
                x,
                start,
                context,
                memory,
                use_reentrant=False,
                preserve_rng_state=self.is_random,
                determinism_check="none",
            )
        return self._run(x, last, context, memory)

    def _run(self, x: State, start: int, context: Context, memory: Sequence[Tensor | None]) -> State:
        for i in range(start, min(start + self.checkpoint_every, len(self.blocks))):
            x = self.blocks[i](x, context, memory)
        return x


class StackPositions(nn.Module):
    """Positions of a stack: a table to add (learned or sinusoidal), rotary angles, or nothing."""

    def __init__(
        self, width: int, heads: int, *, kind: str, max_len: int, generator: Generator | None
    ) -> None:
        super().__init__()
        self.max_len = max_len
        self.sinusoidal: Tensor | None
        self.rotary_cos: Tensor | None
        self.rotary_sin: Tensor | None
        learned = torch.empty(max_len, width).normal_(generator=generator) if kind == "learned" else None
        fixed = sinusoidal_table(max_len, width) if kind == "sinusoidal" else None
        cos, sin = rotary_tables(max_len, width // heads) if kind == "rotary" else (None, None)
        self.learned = None if learned is None else nn.Parameter(learned)
        self.register_buffer("sinusoidal", fixed, persistent=False)
        self.register_buffer("rotary_cos", cos, persistent=False)
        self.register_buffer("rotary_sin", sin, persistent=False)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """`x` (batch, time, width) plus the rows of the table from `start` on, scaled to a unit second moment."""
        self.check(start + x.shape[1])
        table = self.sinusoidal if self.learned is None else self.learned
        return x if table is None else x.add(table[start : start + x.shape[1]]).mul(SUM_SCALE)

    def rotation(self, start: int, time: int) -> tuple[Tensor, Tensor] | None:
        """Cosines and sines for `time` positions from `start` on; None without rotary positions."""
        if self.rotary_cos is None or self.rotary_sin is None:
            return None
        return self.rotary_cos[start : start + time], self.rotary_sin[start : start + time]

    def check(self, length: int) -> None:
        """Raise if `length` exceeds the number of positions."""
        bounded = any(table is not None for table in (self.learned, self.sinusoidal, self.rotary_cos))
        if bounded and length > self.max_len:
            raise InputError(
                expected=f"at most max_len={self.max_len} positions",
                got=f"{length}",
                fix=f"build the model with max_len={length} or more, or shorten the input",
            )


def build_stack(
    size: tuple[int, int, int],
    scheme: Scheme,
    options: Options,
    layout: Layout,
    generator: Generator | None,
) -> Stack:
    """A stack of `size` = (width, heads, depth), with every layer initialized independently."""
    width, _, depth = size
    check_depth(depth)
    blocks = [_build_block(size, index, scheme, options, layout, generator) for index in range(depth)]
    return Stack(blocks, scheme, options, width)


def _build_block(
    size: tuple[int, int, int],
    index: int,
    scheme: Scheme,
    options: Options,
    layout: Layout,
    generator: Generator | None,
) -> TransformerBlock:
    width, heads, depth = size
    inner = "inner" in scheme.norms

    def residual_on(branch: nn.Module, position: int) -> Residual:
        fill_branch_(branch, scheme.base, generator=generator)
        where = replace(layout, position=position)
        residual = Residual(
            branch, scheme=scheme, index=index, depth=depth, layout=where, norm=options.make_norm
        )
        residual.lean = options.lean
        return residual

    self_attention = SelfAttention(
        width,
        heads,
        options=options,
        inner_norm=inner,
        qkv_norm=scheme.qkv_norm,
        value_share=scheme.value_share,
        is_first=index == 0,
    )
    attention = residual_on(self_attention, 0)
    cross = None
    if layout.sublayers == 3:
        cross = residual_on(CrossAttention(width, heads, options=options, inner_norm=inner), 1)
    feed_forward = _make_feed_forward(width, options, inner_norm=inner)
    return TransformerBlock(attention, cross, residual_on(feed_forward, layout.sublayers - 1))


def _make_feed_forward(width: int, options: Options, *, inner_norm: bool) -> nn.Module:
    if not options.experts:
        return FeedForward(width, options=options, inner_norm=inner_norm)
    experts: list[nn.Module] = [
        FeedForward(width, options=options, inner_norm=inner_norm) for _ in range(options.experts)
    ]
    return MixtureOfExperts(width, experts, chosen=options.experts_per_token)


class Encoder(nn.Module):
    """A stack of Transformer blocks on (batch, time, width) tensors, for 1 to thousands of blocks.

    `scheme` is a name in `SCHEMES` (None: `recommended(depth)`). `forward(x, mask, causal=...)` takes a boolean `mask`
    (batch, time), True where there is a token. `max_len` is the largest number of positions, if `options` has any.
    """

    def __init__(  # noqa: PLR0913  (the names of the public contract, and a generator)
        self,
        width: int,
        heads: int,
        depth: int,
        *,
        scheme: str | Scheme | None = None,
        max_len: int = 512,
        options: Options = NO_POSITIONS,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        check_depth(depth)
        self.width, self.heads, self.depth = width, heads, depth
        self.scheme = find_scheme(scheme, depth)
        self.stack = build_stack((width, heads, depth), self.scheme, options, Layout(sublayers=2), generator)
        self.positions = StackPositions(
            width, heads, kind=options.positions, max_len=max_len, generator=generator
        )

    def forward(self, x: Tensor, mask: Tensor | None = None, *, causal: bool = False) -> Tensor:
        _check_stream(x, self.width)
        visible = attention_mask(mask, (x.shape[0], x.shape[1]), causal=causal)
        rotation = self.positions.rotation(0, x.shape[1])
        context = Context(mask=visible, causal=causal and visible is None, rotation=rotation)
        y: Tensor = self.stack(self.positions(x), context)
        return y


def _check_stream(x: Tensor, width: int) -> None:
    if x.ndim != 3 or x.shape[2] != width:
        raise InputError(
            expected=f"x of shape (batch, time, width) with width={width}",
            got=f"shape {tuple(x.shape)}",
            fix="put the batch first and the features last; embed token ids first (or use LanguageModel)",
        )
