"""The Profile: what the readings found in a trace; the Findings that rules make of it; and what was not seen."""

from __future__ import annotations

from typing import Literal

import msgspec

from leadline.records.attribution import Attribution
from leadline.records.facts import Facts
from leadline.records.rehearsal import Rehearsal
from leadline.records.symmetry import Symmetry
from leadline.records.theory import DepthScale, Theory
from leadline.records.trace import Gap, Optimizer, Units
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
    skip_scale: float | None = None
    """What the skip is multiplied by; 1 for the identity, None where it is projected or unknown."""
    branch_scale: float | None = None
    """What the branch's last layer is multiplied by before the add; 1 if by nothing."""
    branch_mean_share: float | None = None
    """Share of the branch's second moment that is its mean over all elements, squared."""


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
    likeness: float | None = None
    """Mean correlation (not centred) of the samples and positions at the exit: 1 if all are the same vector."""
    units: Units | None = None
    """Units of its activations, taken together."""
    mean_share: float | None = None
    r"""Share of the exit's second moment that is its mean: $\bar x^2 / E[x^2]$ with $\bar x$ over all elements."""
    forward_ms_predicted: float | None = None
    """By theory, at the exit; None: no prediction."""
    backward_ms_predicted: float | None = None
    band: float | None = None
    """Half-width of the prediction's finite-width band in e-folds, at two standard deviations."""


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
    attribution: Attribution | None = None
    """The change of the signal along the depth axis, split by kind of op."""
    facts: Facts | None = None
    """Weights, attention, inputs and the loss's head."""
    symmetry: Symmetry | None = None
    update: Update | None = None
    """What one step of the optimiser does; None: not measured."""
    rehearsal: Rehearsal | None = None
    """A few steps of the optimiser on the batch at hand; None: not made."""
    theory: Theory | None = None
    """What theory covers of the pass, and where it parts from measurement."""
    depth_scale: DepthScale | None = None
    """By theory: the gain a block of the depth axis, and how deep such a stack can be."""

    @property
    def predicted(self) -> bool:
        """Nothing was measured, for the model has no weights: what is known, theory predicted."""
        measured = any(each.forward_ms is not None or each.backward_ms is not None for each in self.blocks)
        return not measured and any(each.forward_ms_predicted is not None for each in self.blocks)

    @property
    def shown(self) -> Profile:
        """What rules judge and reports draw: itself; of a predicted one, with theory's moments as if measured."""
        if not self.predicted:
            return self
        return msgspec.structs.replace(self, blocks=tuple(_as_if_measured(each) for each in self.blocks))


def _as_if_measured(block: Block) -> Block:
    return msgspec.structs.replace(
        block, forward_ms=block.forward_ms_predicted, backward_ms=block.backward_ms_predicted
    )


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, with the numbers that say so."""

    code: str
    name: str
    severity: Severity
    where: str
    message: str
    evidence: dict[str, float]
    known: bool = False
    """The baseline lists it: it was there before, and does not fail the check."""
    layers: tuple[int, int] | None = None
    """First and last block it is about, as indices in `Profile.blocks`; None: the whole model, or no block."""
    explained_by: str = ""
    """Code of the finding that this one is a consequence of; "" if it is a root."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that was asked, whether or not it found something."""

    code: str
    name: str
    summary: str
    page: str = ""
    """Its whole documentation, in Markdown; only of a rule that found something, so that reports stay small."""


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
