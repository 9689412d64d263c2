"""How a network is wired: what its outputs depend on, what its loss rewards, and which tensors learn."""

from __future__ import annotations

from typing import Literal

import msgspec

from leadline.records.trace import Source

# Dependence: change part of the inputs, run again, and see which outputs change.

PerturbationKind = Literal["sample", "future", "past", "order", "padding", "rest"]
"""What was changed: every second sample; all positions from one on; all before the last; their order; padded ones; all
but the first or the last one, where outputs have no positions."""


class OpSite(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One op of the pass, as a user finds it in the code."""

    op: str
    module: str = ""
    source: Source | None = None
    """The line of the user's code that makes the call; None if it is not known."""


class Perturbation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One pass with changed inputs, compared with the pass without the change.

    Outputs are compared index by index along the sample axis ("sample", or `by_sample`) or along the position axis (all
    others).
    """

    kind: PerturbationKind
    input: str = ""
    """The input that was changed; "" if all of them were."""
    first: int
    """The first index that was changed, along the same axis."""
    last: int
    changed: int = 0
    """Samples that were changed ("sample" only)."""
    moved: tuple[float, ...]
    """By index of the output: largest change, relative to the largest magnitude of the output; 0 if within noise."""
    forbidden: tuple[int, ...] = ()
    """The indices that changed although they must not depend on what was changed."""
    site: OpSite | None = None
    """The first op in which the change reached an index that it must not reach."""
    by_sample: bool = False
    """The outputs have no positions: they are compared along the sample axis."""
    by_place: bool = False
    """Only the reverse order of the samples changed the forbidden ones, not the content of others ("sample" only)."""

    @property
    def largest(self) -> float:
        """The largest change of any output."""
        return max(self.moved, default=0.0)


# Heuristic: elements of an input; fewer may all be equal by chance, such as the first state of an episode.
MIN_TELLING_ELEMENTS = 8


class InputUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tensor of the batch: does the loss depend on it, and does it say anything?"""

    name: str
    shape: tuple[int, ...]
    used: bool
    """Some op on the way to the loss reads it."""
    visible: bool
    """The predictions depend on it; labels that only the loss reads are used and not visible."""
    constant: bool = False
    """All of its elements are equal."""
    erased: OpSite | None = None
    """The op that makes zeros of all its elements, although they are not; None if something reads them otherwise."""


class Dependence(msgspec.Struct, frozen=True, kw_only=True):
    """Which outputs depend on which inputs, measured by perturbing them."""

    passes: int
    """Forward passes that were made."""
    noise: float
    """Relative change of the outputs when the same pass is repeated."""
    samples: int | None
    """Samples that were run; None if the inputs have no axis of samples."""
    sample_axis: int | None
    positions: int | None
    """Length of the position axis; None if the inputs are not sequences, or it is not known."""
    position_axis: int | None
    perturbations: tuple[Perturbation, ...]
    inputs: tuple[InputUse, ...]
    dropouts: tuple[OpSite, ...] = ()
    """Where something was dropped in eval mode."""
    padding_counted: int = 0
    """Predictions at padded positions whose target the loss counts."""

    @property
    def lone_readings(self) -> tuple[Perturbation, ...]:
        """The perturbations of all positions but one that moved nothing, while that one does."""
        rest = [each for each in self.perturbations if each.kind == "rest"]
        return tuple(each for each in rest if each.largest == 0 and any(other.largest > 0 for other in rest))

    def axes_of(self, name: str) -> int:
        """The number of axes of an input."""
        return next((len(each.shape) for each in self.inputs if each.name == name), 0)

    def of(self, kind: PerturbationKind) -> Perturbation | None:
        """Return the perturbation of this kind; None if it was not made."""
        return next((each for each in self.perturbations if each.kind == kind), None)


# The question: hold the outputs fixed and look at the loss.

Scores = Literal["logits", "probabilities", "log-probabilities"]


class TargetOffset(msgspec.Struct, frozen=True, kw_only=True):
    """The loss asks at position t for what the input has at position t + offset."""

    input: str
    axis: int
    """The axis of positions of the input."""
    offset: int
    share: float
    """Share of the counted positions at which this holds."""
    positions: int
    """Counted positions that could be compared."""


class Broadcast(msgspec.Struct, frozen=True, kw_only=True):
    """An op that compares every output with the target of every sample, because of their shapes."""

    outputs: tuple[int, ...]
    targets: tuple[int, ...]
    site: OpSite


class Reduction(msgspec.Struct, frozen=True, kw_only=True):
    """How a loss adds up its targets, by the weight that each of them has in it."""

    targets: int
    """Targets that the loss counts."""
    total_weight: float
    """The sum of their weights: 1 for a mean over targets, as many as targets for a sum."""
    halves: tuple[int, int]
    """Targets that the loss counts in each half of the batch."""
    largest_over_smallest: float
    """The largest weight over the smallest, each of one sample: 1 if all targets count alike."""


class OutputRange(msgspec.Struct, frozen=True, kw_only=True):
    """The values that the last activation can have, and the targets that it cannot reach."""

    site: OpSite
    low: float
    high: float
    outside: float
    """Share of the targets outside of the range."""


class Question(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the loss rewards, read from its gradient at the predictions."""

    loss: str = ""
    """Name of the loss op; "" if it is none that the op table knows."""
    predictions: tuple[int, ...] = ()
    """Shape of what the loss reads."""
    targets: tuple[int, ...] | None = None
    """Shape of the targets that the loss op reads; None if they were not seen."""
    classes: int | None = None
    """Number of class scores; None if the loss is no classification."""
    scores: Scores | None = None
    """What the class scores are, by their values; None if the loss is no classification."""
    expects: Scores | None = None
    """What the loss op expects; None if it takes any number."""
    scores_loss: str = ""
    """Name of the loss op that reads the scores; of several, one that gets something else than it expects."""
    scrambled: tuple[int, ...] | None = None
    """Shape of the output that was viewed as class scores although its classes are along another axis."""
    counted: int | None = None
    """Predictions with a gradient; the others are ignored by the loss."""
    ignored: int | None = None
    top_share: float | None = None
    """Share of the most frequent target among the counted ones."""
    distinct: int | None = None
    """Number of different targets among the counted ones."""
    offset: TargetOffset | None = None
    toward_target: float | None = None
    """Share of the counted predictions that a step against the gradient moves toward their target."""
    subtracted: tuple[str, ...] = ()
    """Names of loss ops whose result is subtracted, and of similarities to a fixed vector that are minimized."""
    terms: int = 0
    """Calls of loss ops that the loss depends on."""
    foreign_gradient: float | None = None
    """Change of the gradient at the other samples when the target of one sample changes, relative to its own change."""
    swapped: str = ""
    """Name of a loss op whose target learns while its prediction is given; "" if there is none."""
    reads_inputs: bool = True
    """Something that a loss op compares was computed from an input."""
    has_shared_targets: bool = False
    """The target of one sample changes the gradient of every sample alike, although each output has its own."""
    has_permuted_targets: bool = False
    """Each target has an effect on exactly one sample, and that is another one."""
    unbounded_output: tuple[int, ...] | None = None
    """Shape of an output whose growth lowers the loss faster and faster, without end; None if there is none."""
    broadcast: Broadcast | None = None
    """Where outputs of shape (N, 1) meet targets of shape (N,); None if nowhere."""
    compares_directly: bool = False
    """A loss op reads outputs and targets as they are, apart from their layout: each output has one target."""
    unread_answers: tuple[tuple[int, ...], ...] = ()
    """Shapes of targets that nothing reads, while an output of the same shape is not read either."""
    whole_over_halves: float | None = None
    """Loss of the batch over the mean of the losses of its two halves: 1 for a mean over samples, 2 for a sum."""
    reduction: Reduction | None = None
    """How class targets are added up; None if the loss is no classification, or weighs them by anything but samples."""
    output_scale: float | None = None
    """Regression: root mean square of the outputs."""
    target_scale: float | None = None
    """Regression: root mean square of the targets."""
    target_spread: float | None = None
    """Regression: standard deviation of the targets."""
    output_range: OutputRange | None = None
    """Regression: what the last activation can reach; None if it is none with a range."""


# The ledger: who learns.

GradientState = Literal["none", "zero", "finite", "non-finite", "unseen"]


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One trainable tensor, or a frozen one that looks as if it had never been trained."""

    name: str
    kind: str
    """As in `leadline.records.Parameter`."""
    count: int
    block: str = ""
    """The block of the depth axis that uses it; "" if none does."""
    trainable: bool = True
    reached: bool = True
    """The loss depends on it."""
    gradient: GradientState
    in_optimizer: int | None = None
    """How often the optimizers hold it; None if there is no optimizer."""
    optimizer: str = ""
    lr: float | None = None
    decayed: bool = False
    is_gate: bool = False
    """It is zero and has a gradient: a matrix or scale that opens in training, after which more depends on more."""
    is_front: bool = False
    """No optimizer holds it, something held is computed from it, and nothing held comes before it."""
    moved: bool | None = None
    """One step changed it; None if no step was measured."""
    reason: str = ""
    """Why it does not learn; "" if it does."""


class UnregisteredTensor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A trainable leaf of the graph that the model does not register, so `model.parameters()` misses it."""

    shape: tuple[int, ...]
    site: OpSite
    """The first op that reads it."""
    in_optimizer: bool = False


class IdleModule(msgspec.Struct, frozen=True, kw_only=True):
    """A registered module with parameters that the pass never called."""

    path: str
    type: str
    parameters: int
    siblings_ran: int
    """Modules of the same type in the same container that the pass did call."""


class ReusedModule(msgspec.Struct, frozen=True, kw_only=True):
    """One module object that is called in several places where its siblings are called once."""

    path: str
    type: str
    calls: int
    idle_siblings: tuple[str, ...]
    """Modules of the same type in the same container that never ran."""


class DiscardedResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a module with trainable parameters that never reaches the loss."""

    module: str
    type: str
    site: OpSite
    replaced_by: str = ""
    """A later call of a sibling that read the same input instead of this result; "" if there is none."""
    bypassed: bool = False
    """Its caller goes on with its input, which has the shape of its result."""
    kept: bool = True
    """Its caller returns it, or something that was computed from it, or nobody knows what it returns."""


FlatCause = Literal["step", "single", "zeros"]


class FlatStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An op whose output has a gradient and whose inputs have none."""

    site: OpSite
    tensors: int
    """Trainable tensors before it, or its own, whose gradient is exactly zero."""
    cause: FlatCause = "step"
    """A step function (round, sign, floor); a softmax over a single entry; a weight and an input that are both zero."""
    weight: str = ""
    """That weight ("zeros" only)."""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """One row per trainable tensor, and everything that should have a row and has none."""

    rows: tuple[LedgerRow, ...]
    optimizers: tuple[str, ...] = ()
    foreign: int = 0
    """Tensors in the optimizers that are no parameters of the model."""
    unregistered: tuple[UnregisteredTensor, ...] = ()
    idle: tuple[IdleModule, ...] = ()
    reused: tuple[ReusedModule, ...] = ()
    discarded: tuple[DiscardedResult, ...] = ()
    flat: tuple[FlatStep, ...] = ()
    constant_terms: tuple[OpSite, ...] = ()
    """Loss ops that the loss depends on, and nothing trainable goes into."""
    mode_dependent: tuple[str, ...] = ()
    """Modules that drop units or use batch statistics in training mode, and not in eval mode."""
    idle_norms: tuple[str, ...] = ()
    """Batch norms that use running statistics which nothing has updated: they neither center nor scale."""

    @property
    def has_gates(self) -> bool:
        """Some part of the network starts closed and opens in training."""
        return any(row.is_gate for row in self.rows)

    @property
    def learning(self) -> tuple[LedgerRow, ...]:
        """The rows of tensors that learn."""
        return tuple(row for row in self.rows if not row.reason)
