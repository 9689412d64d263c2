"""What theory could say of a trace: how much it covers, where it parts from measurement, and the physics of depth."""

from __future__ import annotations

from typing import Literal

import msgspec

Phase = Literal["ordered", "critical", "chaotic"]


class Parting(msgspec.Struct, frozen=True, kw_only=True):
    """The first op, in the direction of its pass, whose own rule leaves its band though it reads measured values."""

    direction: Literal["forward", "backward"]
    op: int
    """Index of the op."""
    name: str
    module: str
    factor: float
    """Measured / predicted second moment, from this op's own rule alone."""
    inherited: float | None
    """The same for the prediction from the start of the pass: what came with its input is in it too."""
    band: float
    """Half-width in e-folds that was allowed."""
    assumption: str
    """What the rule takes for granted, and what does not hold here."""


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How far predictions lie from measurements: percentiles of |ln(predicted / measured)| over ops."""

    ops: int
    median: float
    p90: float


class Theory(msgspec.Struct, frozen=True, kw_only=True):
    """The account of one prediction."""

    ops: int
    """Ops that carry a signal."""
    with_rule: int
    without: dict[str, int]
    """Ops that no rule could predict, by name."""
    anchored: tuple[str, ...]
    """Where prediction went on from the measured value: "module: op"."""
    forward: Agreement | None
    backward: Agreement | None
    forward_parting: Parting | None
    backward_parting: Parting | None


class DepthScale(msgspec.Struct, frozen=True, kw_only=True):
    r"""The physics of a stack of equal layers.

    A gradient's second moment changes by $\chi$ a layer, hence over $\xi = 1/|\ln\chi|$ layers by $e$.
    """

    chi: float
    xi: float
    phase: Phase
    trainable_depth: float
    """Layers over which the squared gradient changes by as much as networks were seen to bear."""
    q: float | None = None
    """The variance that the stack settles at; infinite or zero if it runs away."""
