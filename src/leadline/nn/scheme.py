"""The fields of a residual scheme, and the place in a stack on which its scales depend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from leadline.errors import InputError

NormPosition = Literal["entry", "pre", "inner", "out", "post"]
Join = Literal[
    "sum",
    "attenuated",
    "sphere",
    "depth-attention",
    "block-depth-attention",
    "dual",
    "siamese",
    "hyper",
    "mhc",
    "mhc-lite",
]
Role = Literal["query", "key", "value", "output", "fc1", "fc2", "router"]
Family = Literal["sgd", "adam"]

# Cited: Mix-LN, arXiv 2412.13795: share of the blocks that use a scheme's `early_norms`.
EARLY_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The grouping of the residual sub-layers of a stack, and which stack it is.

    `sublayers` are the residual sub-layers of one block (1 in an MLP or a ResNet, 2 in an encoder or a
    language model, 3 in a decoder with cross-attention) and `position` is which of them this one is;
    `matrices` is the number of weight matrices in its branch. `partner` is the number of blocks of the other stack
    of an encoder-decoder pair, or None for a single stack.
    """

    sublayers: int = 1
    position: int = 0
    matrices: int = 2
    stack: Literal["encoder", "decoder"] = "encoder"
    partner: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a residual sub-layer: block `index` (from 0) of `depth` blocks with the given `layout`."""

    index: int
    depth: int
    layout: Layout = Layout()

    def __post_init__(self) -> None:
        check_depth(self.depth)
        if not 0 <= self.index < self.depth:
            raise InputError(
                expected=f"index from 0 to depth - 1 = {self.depth - 1}",
                got=f"index={self.index}",
                fix="number the blocks from 0 in the order of the forward pass",
            )

    @property
    def total(self) -> int:
        """Residual sub-layers in the whole stack: 2N for an encoder of N blocks, 3M for a decoder of M."""
        return self.depth * self.layout.sublayers

    @property
    def number(self) -> int:
        """The number of this sub-layer, from 1 to `total`."""
        return self.index * self.layout.sublayers + self.layout.position + 1


Law = Callable[[Place], float]


def one(place: Place) -> float:
    """1: no scaling."""
    return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    r"""A residual scheme: the position of its norms, and how it scales skip, branch and weights with depth.

    Every scheme has the form
    $$ y = \mathrm{post}\big(\alpha\,x + w\;\mathrm{out}(f(s\;\mathrm{pre}(x)))\big) $$
    where $x$ is the stream, $f$ the branch, $\alpha$ = `skip`, $w$ = `branch`, $s$ = `norm_scale`, and a norm is
    present only if `norms` names it (`inner` is the norm before the last matrix of the branch). `gain` multiplies,
    only at initialization, the matrices whose roles are in `gain_roles`; matrices of `zero_roles` start at zero.
    `base` is the initialization that the gain multiplies: `unit` (a branch with a unit input has a unit output, see
    `leadline.nn.init`) or `xavier`.

    `join` says how the output of the branch joins the stream, if not by this sum; see `leadline.nn.streams`. A norm at
    `entry` replaces the stream itself, skip and branch. `attention_norms` are those of the sub-layers before the last
    one of a block, if they differ; `qkv_norm` normalizes queries, keys and values. `norm` is the kind of the norms:
    the model's own, or `DynamicTanh`. `value_share` is the share of the first self-attention's values in those of all
    later ones.

    `exponent` is the $a$ for which a step on the branch's matrices reaches the stream damped by $S^{-a}$, where $S$ is
    the number of residual sub-layers. `bias_exponent` is the same for the bias after the last matrix, which no initial
    gain damps (None: equal to `exponent`).
    """

    name: str
    summary: str
    norms: tuple[NormPosition, ...]
    early_norms: tuple[NormPosition, ...] | None = None
    attention_norms: tuple[NormPosition, ...] | None = None
    qkv_norm: bool = False
    value_share: float = 0.0
    norm: Literal["own", "tanh"] = "own"
    join: Join = "sum"
    skip: Law = one
    branch: Law = one
    norm_scale: Law = one
    gain: Law = one
    embedding_gain: Law = one
    gain_roles: tuple[Role, ...] = ()
    zero_roles: tuple[Role, ...] = ()
    zero_head: bool = False
    embedding_norm: bool = False
    has_skip: bool = True
    block_bypass: bool = False
    learned: Literal["scalar", "vector", "skip"] | None = None
    scalar_biases: bool = False
    base: Literal["unit", "xavier"] = "unit"
    final_norm: bool = True
    counts: Literal["sub-layers", "blocks"] | None = None
    calibrated_for: Family | None = None
    exponent: float | None = None
    bias_exponent: float | None = None
    needs_profile: bool = False
    identity_at_init: bool = False
    paper: str
    where: str

    def norms_at(self, place: Place) -> tuple[NormPosition, ...]:
        """The norms of the sub-layer at `place`: `early_norms`, if any, in the first quarter of the blocks."""
        if self.attention_norms is not None and place.layout.position < place.layout.sublayers - 1:
            return self.attention_norms
        if self.early_norms is not None and place.index < EARLY_SHARE * place.depth:
            return self.early_norms
        return self.norms

    @property
    def is_weighted_sum(self) -> bool:
        """Whether every sub-layer is the formula above with the model's own norms: a branch added with a weight."""
        is_own = self.norm == "own" and "entry" not in self.norms and not self.value_share
        return self.join == "sum" and is_own

    @property
    def has_several_streams(self) -> bool:
        """Whether the state between two sub-layers is more than one tensor of the stream's width."""
        return self.join not in ("sum", "attenuated", "sphere")


def check_depth(depth: int) -> None:
    """Raise unless `depth` is a positive whole number of blocks."""
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
        raise InputError(
            expected="depth: a whole number of blocks, 1 or more",
            got=f"depth={depth!r}",
            fix="pass the number of residual blocks in the stack",
        )
