"""The Profile: everything that the readings derive from a trace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from leadline.records.facts import ModelFacts
from leadline.records.parts import NetworkParts
from leadline.records.rehearsal import MIN_LEARNED_PROGRESS, Rehearsal
from leadline.records.trace import CutKind, Gap, Optimizer, Source, Units
from leadline.records.update import Update
from leadline.records.wiring import Dependence, Ledger, Question

FactorKind = Literal[
    "activation", "weight", "norm", "attention", "product", "skip", "branch", "scale", "pool", "loss", "rest"
]
# Derived: no block has a negative index.
LOSS_BLOCK = -1
"""The block index of factors after the last block, which belong to the loss."""

# Heuristic, see tests/readings/test_pretrained.py: fresh networks show almost no trained matrix, a small language model
# shows more than this after a hundred steps from GPT-2's small weights.
MIN_TRAINED_SHARE = 0.2


class Factor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    r"""The effect of one kind of op on the signal within one block.

    `forward` is $\ln(q_{out} / q_{in})$ of the second moment $q = E[x^2]$; `backward` is
    $\ln(G_{in} / G_{out})$ of the squared gradient $G = \sum (\partial L / \partial x)^2$. None: not measured.
    """

    block: int
    """Index in `Profile.blocks`; LOSS_BLOCK for the loss."""
    kind: FactorKind
    op: str = ""
    """Name of the op of this kind with the largest effect: "sigmoid", "linear"."""
    ops: int = 1
    forward: float | None = None
    backward: float | None = None
    forward_theory: float | None = None
    """What the op table predicts from the op's own input and weights; None if it has no formula."""
    backward_theory: float | None = None


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """The factors of every block in depth order; within a block, in order of execution.

    They telescope: over any range of blocks they sum to the logarithm of the measured change.
    """

    factors: tuple[Factor, ...]

    def within(self, blocks: Iterable[int]) -> tuple[Factor, ...]:
        """Return the factors of these blocks."""
        wanted = set(blocks)
        return tuple(factor for factor in self.factors if factor.block in wanted)


# Theory: how much of a trace it covers, where it departs from measurement, and the physics of depth.

Phase = Literal["ordered", "critical", "chaotic"]


class Parting(msgspec.Struct, frozen=True, kw_only=True):
    """The first op, in the direction of its pass, whose rule misses its band even when it reads measured values."""

    direction: Literal["forward", "backward"]
    op: int
    """Index of the op."""
    name: str
    module: str
    factor: float
    """Measured / predicted second moment, from this op's own rule alone."""
    inherited: float | None
    """Measured / predicted second moment of the prediction from the start of the pass, with errors of earlier ops."""
    band: float
    """Allowed half-width in e-folds."""
    assumption: str
    """The assumption of the rule that does not hold here."""


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How far predictions are from measurements: percentiles of |ln(predicted / measured)| over ops."""

    ops: int
    median: float
    p90: float


class Theory(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a trace theory predicts, and how well."""

    ops: int
    """Ops that carry a signal."""
    with_rule: int
    without: dict[str, int]
    """Number of ops that no rule could predict, by name."""
    anchored: tuple[str, ...]
    """Where the prediction continued from the measured value: "module: op"."""
    forward: Agreement | None
    backward: Agreement | None
    forward_parting: Parting | None
    backward_parting: Parting | None


class DepthScale(msgspec.Struct, frozen=True, kw_only=True):
    r"""The physics of a stack of equal layers.

    The second moment of the gradient changes by $\chi$ per layer, hence by $e$ over $\xi = 1/|\ln\chi|$ layers.
    """

    chi: float
    xi: float
    phase: Phase
    trainable_depth: float
    """Layers over which the squared gradient changes by the largest factor at which networks were seen to train."""
    q: float | None = None
    """The variance that the stack converges to; infinite or zero if it diverges or vanishes."""


# Symmetry: the free rescalings of a network, and where weight decay has no effect.


class Generator(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    r"""One free rescaling: multiplying each tensor by $a^{n}$, $n$ its exponent, changes nothing, for every $a > 0$."""

    exponents: dict[str, int]
    """By parameter name."""
    says: str
    """The rescaling in words."""
    statistics: dict[str, int] = {}
    """Exponents of running statistics, by buffer name; they must be rescaled too for evaluation."""


class EpsSite(msgspec.Struct, frozen=True, kw_only=True):
    """A norm before which the scale is free, as far as its eps allows."""

    where: str
    """The module it runs in."""
    eps: float
    against: float | None
    """The mean of what eps is added to: usually the variance of the signal before the norm."""

    @property
    def share(self) -> float | None:
        """eps over what it is added to: how far the norm is from being scale-invariant."""
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
    """Its scale is free while all others keep theirs: the network is invariant to its scale."""
    inert: bool = False
    """It can shrink to zero while no decayed tensor grows."""


class Symmetry(msgspec.Struct, frozen=True, kw_only=True):
    """All free rescalings of a network's parameter tensors."""

    generators: tuple[Generator, ...]
    """A basis of the group, with few tensors in each generator."""
    tensors: tuple[ScaledTensor, ...]
    decayed: bool
    """Only tensors that the optimizer decays count in the penalty; False: no decay is known, and all count."""
    penalty: float | None
    """Sum of squares of the penalized tensors, each weighted by its decay if that is known."""
    least: float | None
    """Infimum of the penalty along the free directions; eps stops it earlier."""
    eps: tuple[EpsSite, ...]
    held: tuple[str, ...]
    """Ops whose scaling is unknown: their inputs were held fixed, so the group may be larger."""

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
        """The share of the penalty that can be removed without changing the network."""
        if self.penalty is None or self.least is None:
            return None
        return 1.0 - self.least / self.penalty if self.penalty > 0 else 0.0


# The depth axis, anomalies, and the Profile itself.

Direction = Literal["forward", "backward"]
Placement = Literal["none", "pre", "post", "output", "sandwich", "pre+post", "post+output", "all"]


class ResidualAdd(msgspec.Struct, frozen=True, kw_only=True):
    """A block that adds a branch to (a scaled copy of) its own start."""

    placement: Placement
    """Where norms are: before the branch, after the add, or at the output of the branch."""
    projected: bool
    """The skip side is itself a weight layer (a downsampling shortcut), not the identity."""
    skip_ms: float | None
    branch_ms: float | None
    add: int
    """Value id of the sum."""
    skip_scale: float | None = None
    """Factor of the skip; 1 for the identity, None if it is projected or unknown."""
    branch_scale: float | None = None
    """Factor of the branch's last layer before the add; 1 if there is none."""
    branch_mean_share: float | None = None
    """Share of the branch's second moment that is its mean over all elements, squared."""


class DepthBlock(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a network between two adjacent points of the depth axis; measured at its exit."""

    name: str
    stream: int
    forward_ms: float | None
    backward_ms: float | None
    elements: int
    """Elements of the exit value."""
    exit: int
    """Value id of the exit."""
    weights: int
    """Number of ops in this block that multiply by a weight."""
    norms: int
    """Number of ops in this block that normalize."""
    bypassed: bool
    """Other paths bypass this point: it lies on the longest path, but is not a bottleneck of the graph."""
    residual: ResidualAdd | None
    params: tuple[str, ...]
    modules: tuple[str, ...]
    likeness: float | None = None
    """Mean uncentered correlation of samples and positions at the exit; 1 if all are the same vector."""
    units: Units | None = None
    """Units of all its activations together."""
    mean_share: float | None = None
    r"""Share of the exit's second moment that is its mean: $\bar x^2 / E[x^2]$ with $\bar x$ over all elements."""
    forward_ms_predicted: float | None = None
    """Second moment at the exit that theory predicts; None: no prediction."""
    backward_ms_predicted: float | None = None
    band: float | None = None
    """Half-width of the prediction's finite-width band in e-folds, at two standard deviations."""


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """The depth axis of one batch input: every path to the loss goes through these blocks."""

    input: str
    blocks: int
    joins: int | None = None
    """Index of the stream that this one flows into (an encoder into its decoder); None: it ends at the loss."""


NonFiniteCause = Literal["zero", "negative", "domain", "masked", "ignored", "unweighted", "empty", "overflow"]
"""Why an op makes NaN or infinity of finite numbers: its input is 0, negative, or outside of its domain; a row is
masked completely; every label is ignored, or has a weight of 0; nothing is averaged; or the result is too large."""


class Anomaly(msgspec.Struct, frozen=True, kw_only=True):
    """The first op, in execution order of its pass, with a non-finite output."""

    direction: Direction
    op: str
    module: str
    value: int
    non_finite: int
    count: int
    source: str
    """The batch input or parameter that already held a non-finite number; "" if this op produced it."""
    place: Source | None = None
    """The line of the user's code that calls the op."""
    cause: NonFiniteCause = "overflow"
    after: str = ""
    """The op that turns the infinity of this op into NaN; "" if this op makes the NaN, or nothing does."""
    operand: str = ""
    """The op that made the input; "" if it is a tensor from outside."""
    entropy: bool = False
    """Whether the input of a logarithm is also its factor: p log p."""
    learned: bool = False
    """Whether a gradient flows to the input."""


class GraphCut(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The place at which the loss stops depending on parameters, as far as autograd sees."""

    how: CutKind
    op: str
    module: str = ""
    place: Source | None = None
    parameters: tuple[str, ...] = ()
    """Names of the trainable parameters before the cut that get no gradient, or only zeros; none if all get another."""


class Jump(msgspec.Struct, frozen=True, kw_only=True):
    """A large change of the signal across one block."""

    direction: Direction
    block: str
    factor: float
    """Second moment after the block / before it, in the direction of the signal."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was derived from one trace; the only input of the model checks."""

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
    cuts: tuple[GraphCut, ...] = ()
    """Where the graph is cut before trainable parameters, in order of execution."""
    attribution: Attribution | None = None
    """The change of the signal along the depth axis, split by kind of op."""
    facts: ModelFacts | None = None
    """Weights, attention, inputs and the loss's head."""
    symmetry: Symmetry | None = None
    update: Update | None = None
    """What one step of the optimizer does; None: not measured."""
    rehearsal: Rehearsal | None = None
    """A few steps of the optimizer on the batch; None: not made."""
    constant_loss: float | None = None
    """Loss of the best output that is the same for every sample of the batch; None if it is not known."""
    theory: Theory | None = None
    """How much of the pass theory covers, and where it departs from measurement."""
    depth_scale: DepthScale | None = None
    """The gain per block that theory predicts, and how deep such a stack can be."""
    dependence: Dependence | None = None
    """What the outputs depend on; None: not probed."""
    question: Question | None = None
    """What the loss rewards; None: not probed."""
    ledger: Ledger | None = None
    """Which tensors learn."""
    parts: NetworkParts | None = None
    """Attentions, routers and other parts that are recognized by their ops; None: not looked for."""

    @property
    def has_learned(self) -> bool:
        """The loss is far below that of any constant output: the network was trained before, so that it can be."""
        if self.loss is None or self.constant_loss is None:
            return False
        return self.loss < (1 - MIN_LEARNED_PROGRESS) * self.constant_loss

    @property
    def is_pretrained(self) -> bool:
        """Most matrices have been trained before, so that rules about initialization do not apply."""
        trained = None if self.parts is None else self.parts.trained
        return trained is not None and trained >= MIN_TRAINED_SHARE

    @property
    def predicted(self) -> bool:
        """Nothing was measured, because the model has no weights; theory predicted all values."""
        measured = any(each.forward_ms is not None or each.backward_ms is not None for each in self.blocks)
        return not measured and any(each.forward_ms_predicted is not None for each in self.blocks)

    @property
    def shown(self) -> Profile:
        """The profile that checks and reports use; a predicted one shows the moments of theory as measured ones."""
        if not self.predicted:
            return self
        return msgspec.structs.replace(self, blocks=tuple(_as_if_measured(each) for each in self.blocks))


def _as_if_measured(block: DepthBlock) -> DepthBlock:
    return msgspec.structs.replace(
        block, forward_ms=block.forward_ms_predicted, backward_ms=block.backward_ms_predicted
    )


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the pass was recorded. What is missing is listed, never shown as zero."""

    ops: int
    ops_known: int
    values: int
    """Floating-point values written by the pass."""
    forward: int
    """Number of these values with forward statistics."""
    backward: int
    """Number of these values with statistics of their gradient."""
    gaps: tuple[Gap, ...]
