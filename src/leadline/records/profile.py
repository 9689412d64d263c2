"""The Profile: everything that the readings found in a trace, and the findings that checks make of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from leadline.records.facts import Facts
from leadline.records.trace import Gap, Optimizer, Units
from leadline.records.update import Rehearsal, Update

FactorKind = Literal[
    "activation", "weight", "norm", "attention", "product", "skip", "branch", "scale", "pool", "loss", "rest"
]
LOSS_BLOCK = -1
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


# What theory could say of a trace: how much it covers, where it parts from measurement, and the physics of depth.

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


# What the symmetry reading found: the free rescalings of a network, and where weight decay is inert.


class Generator(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    r"""One free rescaling: multiplying each tensor by $a^{n}$, $n$ its exponent, changes nothing, for every $a > 0$."""

    exponents: dict[str, int]
    """By parameter name."""
    says: str
    """The same in words."""
    statistics: dict[str, int] = {}
    """Exponents of the running statistics that follow, by buffer name: for evaluation they must be rescaled too."""


class EpsSite(msgspec.Struct, frozen=True, kw_only=True):
    """A norm in front of which the scale is free, as far as its eps allows."""

    where: str
    """The module it runs in."""
    eps: float
    against: float | None
    """What eps is added to, on average: the variance of the signal in front of the norm, as a rule."""

    @property
    def share(self) -> float | None:
        """eps / (what it is added to): how far the norm is from being indifferent to scale."""
        if self.against is None:
            return None
        return self.eps / self.against if self.against > 0 else float("inf")


class ScaledTensor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One trainable parameter, as the penalty sees it."""

    name: str
    kind: str
    """As in `leadline.records.Parameter`."""
    count: int
    norm: float | None = None
    grad_norm: float | None = None
    alone: bool = False
    """Its scale is free while all others keep theirs: the network is invariant to it."""
    inert: bool = False
    """It can shrink to nothing while no decayed tensor grows."""


class Symmetry(msgspec.Struct, frozen=True, kw_only=True):
    """All free rescalings of a network's parameter tensors."""

    generators: tuple[Generator, ...]
    """A basis of the group, as few tensors in each as could be had."""
    tensors: tuple[ScaledTensor, ...]
    decayed: bool
    """Only the tensors that the optimiser decays count as penalty; False: no decay is known, and all count."""
    penalty: float | None
    """Sum of squares of what is penalised, each weighted with its decay if that is known."""
    least: float | None
    """What the same network's penalty comes down to along the free directions (an infimum: eps stops it earlier)."""
    eps: tuple[EpsSite, ...]
    held: tuple[str, ...]
    """Ops whose scaling is not known or not worked out: what they read was held fixed, so the group may be larger."""

    @property
    def dimension(self) -> int:
        return len(self.generators)

    @property
    def inert(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.tensors if each.inert)

    @property
    def invariant(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.tensors if each.alone)

    @property
    def free_share(self) -> float | None:
        """The share of the penalty that can be had without changing the network."""
        if self.penalty is None or self.least is None:
            return None
        return 1.0 - self.least / self.penalty if self.penalty > 0 else 0.0


# The Profile: what the readings found in a trace; the Findings that rules make of it; and what was not seen.

Direction = Literal["forward", "backward"]
Placement = Literal["none", "pre", "post", "output", "sandwich", "pre+post", "post+output", "all"]


class ResidualAdd(msgspec.Struct, frozen=True, kw_only=True):
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


class DepthBlock(msgspec.Struct, frozen=True, kw_only=True):
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
    residual: ResidualAdd | None
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
    blocks: tuple[DepthBlock, ...]
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


def _as_if_measured(block: DepthBlock) -> DepthBlock:
    return msgspec.structs.replace(
        block, forward_ms=block.forward_ms_predicted, backward_ms=block.backward_ms_predicted
    )


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
