"""Options of a Transformer other than its size and scheme."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import nn

from leadline.errors import InputError

Positions = Literal["none", "learned", "sinusoidal", "rotary"]
FeedForwardKind = Literal["gelu", "relu", "swiglu"]
NormKind = Literal["layer", "rms"]

# Cited: Vaswani et al. 2017, section 3.3: hidden width / width of a feed-forward.
DEFAULT_EXPANSION = 4
# Cited: Shazeer 2020, arXiv 2002.05202: the same number of parameters with three matrices.
DEFAULT_GATED_EXPANSION = 8 / 3
# Heuristic: a gated hidden width is rounded up to a multiple that suits matrix units.
HIDDEN_MULTIPLE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The parts of the blocks of a Transformer; the defaults are a good starting point.

    `hidden` is the hidden width of the feed-forward (None: 4 x width, or 8/3 x width for `swiglu`). `checkpoint_every`
    is the number of blocks that the backward pass recomputes at a time (0: it recomputes none). `lean` saves memory: it
    stores the attention's matrix products and recomputes norms and the inside of the feed-forward. `tie` uses the
    embedding as output matrix too. With `experts`, every feed-forward is a `MixtureOfExperts` with this many, of which
    each token passes `experts_per_token`.
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
    experts: int = 0
    experts_per_token: int = 2

    def __post_init__(self) -> None:
        _one_of("positions", self.positions, get_args(Positions))
        _one_of("feed_forward", self.feed_forward, get_args(FeedForwardKind))
        _one_of("norm", self.norm, get_args(NormKind))
        _at_least("checkpoint_every", self.checkpoint_every, 0)
        _at_least("experts", self.experts, 0)
        _at_least("experts_per_token", self.experts_per_token, 1)
        if self.experts and self.lean:
            raise InputError(
                expected="experts or lean, not both",
                got=f"experts={self.experts}, lean=True",
                fix="use checkpoint_every to save memory in a model with experts",
            )
        if self.hidden is not None:
            _at_least("hidden", self.hidden, 1)
        if not 0.0 <= self.dropout < 1.0:
            raise InputError(
                expected="dropout: a share from 0 up to, not including, 1",
                got=f"dropout={self.dropout}",
                fix="use 0.1 for small data sets, or 0 for one pass over a large one",
            )

    def hidden_width(self, width: int) -> int:
        """The hidden width of a feed-forward of this kind in a stream of `width`."""
        if self.hidden is not None:
            return self.hidden
        if self.feed_forward != "swiglu":
            return DEFAULT_EXPANSION * width
        return -(-int(DEFAULT_GATED_EXPANSION * width) // HIDDEN_MULTIPLE) * HIDDEN_MULTIPLE

    def make_norm(self, width: int) -> nn.Module:
        """A norm over the last `width` features."""
        return nn.LayerNorm(width) if self.norm == "layer" else nn.RMSNorm(width)


def _at_least(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(
            expected=f"{name}: a whole number, {least} or more",
            got=f"{name}={value!r}",
            fix=f"omit {name} to use the default",
        )


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(
            expected=f"{name}: one of {', '.join(allowed)}",
            got=f"{name}={value!r}",
            fix=f"pass one of these values for {name}",
        )
