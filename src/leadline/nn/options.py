"""Options: what a Transformer is made of besides its size and scheme."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import nn

from leadline.errors import InputError

Positions = Literal["none", "learned", "sinusoidal", "rotary"]
FeedForwardKind = Literal["gelu", "relu", "swiglu"]
NormKind = Literal["layer", "rms"]

EXPANSION = 4  # hidden / width of a feed-forward (Vaswani et al. 2017, section 3.3)
GATED_EXPANSION = 8 / 3  # the same parameters with three matrices (Shazeer 2020, arXiv 2002.05202)
HIDDEN_MULTIPLE = 8  # a gated hidden width is rounded up to this, for the matrix units


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the blocks of a Transformer are made of. The defaults are what a careful practitioner starts from.

    `hidden` is the feed-forward's hidden width (None: 4 x width, or 8/3 x width for the gated one).
    `checkpoint_every` k recomputes k blocks at a time in the backward pass (0: keep everything); `lean` keeps
    the attention's matrix products and recomputes norms and the inside of the feed-forward. `tie` shares the
    embedding with the output.
    """

    positions: Positions = "rotary"
    feed_forward: FeedForwardKind = "gelu"
    hidden: int | None = None
    norm: NormKind = "layer"
    dropout: float = 0.0
    bias: bool = True
    qk_norm: bool = False
    tie: bool = False
    checkpoint_every: int = 0
    lean: bool = False

    def __post_init__(self) -> None:
        _one_of("positions", self.positions, get_args(Positions))
        _one_of("feed_forward", self.feed_forward, get_args(FeedForwardKind))
        _one_of("norm", self.norm, get_args(NormKind))
        _at_least("checkpoint_every", self.checkpoint_every, 0)
        if self.hidden is not None:
            _at_least("hidden", self.hidden, 1)
        if not 0.0 <= self.dropout < 1.0:
            raise InputError(
                expected="dropout: a share from 0 up to, not including, 1",
                got=f"dropout={self.dropout}",
                fix="0.1 is common for small data, 0 for one pass over much data",
            )

    def hidden_width(self, width: int) -> int:
        """The hidden width of a feed-forward of this kind in a stream of `width`."""
        if self.hidden is not None:
            return self.hidden
        if self.feed_forward != "swiglu":
            return EXPANSION * width
        return -(-int(GATED_EXPANSION * width) // HIDDEN_MULTIPLE) * HIDDEN_MULTIPLE

    def make_norm(self, width: int) -> nn.Module:
        """A norm over the last `width` features."""
        return nn.LayerNorm(width) if self.norm == "layer" else nn.RMSNorm(width)


def _at_least(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(
            expected=f"{name}: a whole number, {least} or more",
            got=f"{name}={value!r}",
            fix=f"leave {name} out for the default",
        )


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(
            expected=f"{name}: one of {', '.join(allowed)}",
            got=f"{name}={value!r}",
            fix=f"choose a {name} above",
        )
