"""Who changed the signal: the log-gain of each kind of op in each block, forward and backward."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

FactorKind = Literal[
    "activation", "weight", "norm", "attention", "product", "skip", "branch", "scale", "pool", "loss", "rest"
]
BEHIND = -1
"""Stands for the block of factors that lie behind the last block: the loss."""


class Factor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    r"""What one kind of op did to the signal on its way through one block.

    `forward` is $\ln(q_{out} / q_{in})$ of the second moment $q = E[x^2]$; `backward` is
    $\ln(G_{in} / G_{out})$ of the squared gradient $G = \sum (\partial L / \partial x)^2$. None: not measured.
    """

    block: int
    """Index in `Profile.blocks`; BEHIND for the loss."""
    kind: FactorKind
    op: str = ""
    """Name of the op of this kind that changed most: "sigmoid", "linear"."""
    ops: int = 1
    forward: float | None = None
    backward: float | None = None
    forward_theory: float | None = None
    """What the op table predicts from the op's own input and weights; None where it has no formula."""
    backward_theory: float | None = None


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """The factors of every block in depth order; within a block, in order of execution.

    They telescope: over any range of blocks they sum to the logarithm of the change that was measured.
    """

    factors: tuple[Factor, ...]

    def within(self, blocks: Iterable[int]) -> tuple[Factor, ...]:
        """The factors of these blocks."""
        wanted = set(blocks)
        return tuple(factor for factor in self.factors if factor.block in wanted)
