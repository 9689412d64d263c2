"""The Profile: what the readings found in a trace; the Findings that rules make of it; and what was not seen."""

from __future__ import annotations

from typing import Literal

import msgspec

from leadline.records.trace import Gap, Optimizer
from leadline.records.update import Update

Severity = Literal["info", "warning", "error"]
Verdict = Literal["trains", "poor", "fails", "undecided"]
Direction = Literal["forward", "backward"]
Placement = Literal["none", "pre", "post", "output", "sandwich", "pre+post", "post+output", "all"]


class Residual(msgspec.Struct, frozen=True, kw_only=True):
    """A block that adds a branch to (a scaled copy of) its own start."""

    placement: Placement
    """Where norms sit: before the branch, after the add, or at the branch's output."""
    projected: bool
    """The skip side is itself a weight layer (a downsampling shortcut), not the identity."""
    skip_ms: float | None
    branch_ms: float | None
    add: int
    """Value id of the sum."""


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """What lies between two neighbouring points of the depth axis; measured at its exit."""

    name: str
    stream: int
    forward_ms: float | None
    backward_ms: float | None
    elements: int
    """Elements of the exit value."""
    exit: int
    """Value id of the exit."""
    weights: int
    """Ops in this block that multiply by a weight."""
    norms: int
    """Ops in this block that normalise."""
    bypassed: bool
    """Other paths lead past this point: it lies on the longest path, not on a narrow waist of the graph."""
    residual: Residual | None
    params: tuple[str, ...]
    modules: tuple[str, ...]


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """The depth axis seen from one batch input: through these blocks every path to the loss must go."""

    input: str
    blocks: int
    joins: int | None = None
    """Index of the stream that this one flows into (an encoder into its decoder); None: it ends at the loss."""


class Anomaly(msgspec.Struct, frozen=True, kw_only=True):
    """The first op, in execution order of its pass, at which something that is not a finite number appears."""

    direction: Direction
    op: str
    module: str
    value: int
    non_finite: int
    count: int
    source: str
    """What brought it in: a batch input or parameter that held it already; "" if this op made it."""


class Jump(msgspec.Struct, frozen=True, kw_only=True):
    """A large change of the signal across one block."""

    direction: Direction
    block: str
    factor: float
    """Second moment behind the block / before it, in the direction the signal runs."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """All that was read off one trace; the only thing rules see."""

    model: str
    loss: float | None
    training: bool
    optimizer: Optimizer | None
    parameters: int
    trainable: int
    streams: tuple[Stream, ...]
    blocks: tuple[Block, ...]
    jumps: tuple[Jump, ...]
    anomalies: tuple[Anomaly, ...]
    backward_ran: bool
    update: Update | None = None
    """What one step of the optimiser does; None: not measured."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, with the numbers that say so."""

    code: str
    name: str
    severity: Severity
    where: str
    message: str
    evidence: dict[str, float]


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the pass was seen. What was not seen is listed, never shown as zero."""

    ops: int
    ops_known: int
    values: int
    """Floating-point values written by the pass."""
    forward: int
    """Of these, with forward statistics."""
    backward: int
    """Of these, with statistics of their gradient."""
    gaps: tuple[Gap, ...]
