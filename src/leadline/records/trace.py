"""The Trace: every op of one forward and backward pass."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from leadline.records.codec import decode, encode
from leadline.records.display import NotebookCard

TRACE_SCHEMA = "leadline.trace/2"

Phase = Literal["forward", "loss"]
SourceKind = Literal["input", "target", "parameter", "buffer", "constant"]
CutKind = Literal["call", "no_grad", "discrete", "exit", "zero", "draw"]
"""What cuts a graph: a call such as `detach`, a `no_grad` block, an op whose result has no gradient (argmax), a
conversion to Python or NumPy, an op through which the gradient is exactly zero (round), or a random draw with a mean
and a deviation that learn, whose result carries no gradient to them."""

CHANGED_THROUGH_VIEW = "changed in place through a view"
"""The reason in `Value.unobserved` of a tensor that an op changed through a view of it."""


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics over all elements of one tensor. NaN means that the measured value was NaN."""

    count: int
    mean: float
    ms: float
    """Mean square, the second moment $E[x^2]$."""
    abs_max: float
    zero_share: float
    non_finite: int

    @property
    def var(self) -> float:
        """$E[x^2] - E[x]^2$; rounding cannot make it negative."""
        return self.ms if math.isinf(self.ms) else max(self.ms - self.mean * self.mean, 0.0)

    @property
    def rms(self) -> float:
        return math.sqrt(self.ms) if self.ms >= 0 else math.nan


class GradientStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Statistics over all elements of the gradient of one tensor."""

    count: int
    ms: float
    """Mean square."""
    non_finite: int
    abs_max: float | None = None
    """The largest magnitude; None where it was not asked for, because the mean square shows that it is far from the
    limits of the dtype. It is always measured in half precision."""

    @property
    def rms(self) -> float:
        return math.sqrt(self.ms) if self.ms >= 0 else math.nan


class Units(msgspec.Struct, frozen=True, kw_only=True):
    """Units (features or channels) of an activation, each over the whole batch."""

    count: int
    dead: int
    """Units that were exactly zero for every sample and position."""
    saturated: int | None = None
    """Units that were at a bound of the activation everywhere; None for unbounded activations."""


class Attended(msgspec.Struct, frozen=True, kw_only=True):
    r"""How an attention spreads over its keys, measured on a few queries; $p$ are the weights of one query."""

    keys: int
    purity: float
    r"""Mean of $\sum p^2$: one over the number of keys if all weights are equal, 1 if one key gets everything."""
    entropy: float
    r"""Mean of $-\sum p \ln p$, in nats."""
    logit_var: float
    """Variance of a query's logits over the keys, averaged over the queries."""
    logit_max: float | None = None
    """Largest magnitude of an unmasked logit."""
    slice_logits: tuple[float, ...] = ()
    """Largest magnitude in each head, or at each index of the first axis where no axis runs over heads."""
    slice_purities: tuple[float, ...] = ()
    """The purity of each of these slices."""


class Mixing(msgspec.Struct, frozen=True, kw_only=True):
    r"""A product $M X$ of parallel streams $X$ with a small square matrix $M$, which may differ from token to token."""

    streams: int
    matrix: tuple[float, ...]
    """$M$, row by row; the mean over tokens."""
    row_error: float
    """Largest distance from 1 of the sum of a row, over all tokens."""
    column_error: float
    spread: float
    """Share of the second moment of the result that the streams do not have in common; 0 if all are equal."""
    gradient_spread: float | None = None
    """That share for the gradient of the result; None if it has none."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the user's code."""

    file: str
    """Path from the root of the repository, with forward slashes."""
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One tensor of the pass: written by an op, or read from outside (then `source` and `name` say what)."""

    id: int
    shape: tuple[int, ...]
    dtype: str
    op: int | None = None
    source: SourceKind | None = None
    name: str = ""
    forward: Stats | None = None
    backward: GradientStats | None = None
    units: Units | None = None
    common_ms: float | None = None
    """Mean square, over units, of each unit's mean over samples and positions.

    As a share of the second moment it is 1 if all samples are equal, and one over their number if they are independent.
    """
    attended: Attended | None = None
    """For the output of a fused attention, or of a softmax over keys: how queries spread over their keys."""
    summed_targets: float | None = None
    """For the output of a loss of classes that takes no mean: the number of targets that are not ignored."""
    choices: tuple[int, ...] = ()
    """For the indices that a topk, max or argmax returns over few elements: how often it chose each of them."""
    mixing: Mixing | None = None
    """For the product of a small square matrix and what may be parallel streams: what was measured of both."""
    unobserved: str = ""
    """Why statistics are missing where one would expect them."""

    @property
    def floating(self) -> bool:
        return self.dtype.startswith(("float", "bfloat", "complex"))


class Op(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One torch call of the forward pass or the loss, in order of execution."""

    index: int
    name: str
    """Canonical name, without namespace, in-place mark or operator spelling: `x += y` is "add"."""
    callable: str
    """The name in PyTorch: "torch.Tensor.add_"."""
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kind: str | None = None
    """The family in the op table ("weight", "norm", "add", ...); None: the table does not know this op."""
    module: str = ""
    """Path of the innermost module that was running; "" is the model itself."""
    call: int = 0
    """The number of the call of that module; 0 is the first."""
    phase: Phase = "forward"
    params: tuple[str, ...] = ()
    args: tuple[Any, ...] = ()
    """Positional arguments as JSON: tensors as "%7" (value 7), everything else as itself.

    A slice is {"slice": [start, stop, step]}, an ellipsis "...", a dtype its name, an infinity "Infinity", and anything
    that JSON cannot express "?".
    """
    kwargs: dict[str, Any] = {}
    """Keyword arguments, encoded in the same way."""
    cut: CutKind | None = None
    """How the op ends the graph, if an input requires a gradient and no output does."""
    source: Source | None = None
    """The innermost line of the user's own code that made the call; None if it was made by installed code only."""
    forward_ms_predicted: float | None = None
    """Second moment of the first floating-point output that theory predicts; None: no prediction."""
    backward_ms_predicted: float | None = None
    """Second moment of that output's gradient that theory predicts."""
    band: float | None = None
    """Half-width of the prediction's finite-width band in e-folds, at two standard deviations."""


class GraphExit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that turned a tensor into something that autograd cannot follow: a Python number, a list, an array."""

    name: str
    """The method: "item", "tolist", "numpy"."""
    value: int
    module: str = ""
    source: Source | None = None


class Parameter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One parameter tensor with statistics of its gradient, which is that of the unscaled loss."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    """How the pass uses it: "matrix", "conv", "embedding", "norm", "bias", "scalar" or "other"."""
    aliases: tuple[str, ...] = ()
    """Other names of the same tensor (tied weights)."""
    trainable: bool = True
    used: bool = True
    mean: float | None = None
    ms: float | None = None
    norm: float | None = None
    grad_ms: float | None = None
    grad_norm: float | None = None
    grad_dot_weight: float | None = None
    """$\\langle g, w \\rangle$: zero where the loss does not depend on the scale of $w$."""
    grad_non_finite: int = 0
    grad_slices: tuple[float, ...] = ()
    """Norms of the gradient at each index of the first axis, of stacked matrices in a pass that routes tokens."""
    unobserved: str = ""
    init: str = ""
    """What the initializers did, in words, if the model was built without weights."""
    clone_of: str = ""
    """An earlier parameter that holds the same random numbers (a deep copy), if that is known."""

    @property
    def count(self) -> int:
        return math.prod(self.shape)


class Module(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One submodule: what it is and how often the pass called it."""

    path: str
    type: str
    calls: int
    aliases: tuple[str, ...] = ()
    container: bool = False
    """It only holds other modules (a ModuleList and the like) and cannot be called."""
    source: Source | None = None
    """Where its class is defined, if that is a file of the user."""
    given: tuple[int | None, ...] = ()
    """Value ids of the tensors among the positional arguments of its first call; None: not used by any op before."""
    mode_dependent: bool = False
    """It computes something else in training mode than in eval mode: a dropout or a batch norm."""
    returned: tuple[int | None, ...] = ()
    """Value ids of the tensors that its first call returned."""


class Gap(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that the trace could not record, or only in part: what, why and where."""

    what: str
    why: str
    where: tuple[str, ...] = ()
    is_usual: bool = False
    """It is the same for every call of this kind, and shown with the details only."""


class ParamGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters that share the settings of an optimizer."""

    parameters: tuple[str, ...]
    """Names of the parameters; "?" for a tensor that is not a parameter of the model."""
    lr: float | None
    weight_decay: float
    options: dict[str, Any]
    """All other settings of the group that JSON can express (momentum, betas, eps, ...)."""
    optimizer: str = ""
    """Class of the optimizer that holds the group; "" in records of older versions."""
    member: int = 0
    """Place of that optimizer among those that were passed."""
    known_as: str = ""
    """A parent class that Leadline knows, if it does not know the class itself."""


class Optimizer(msgspec.Struct, frozen=True, kw_only=True):
    """The optimizer that the model is trained with, or several that step together."""

    name: str
    """Its class; "Muon + AdamW" for several."""
    groups: tuple[ParamGroup, ...]
    steps: int
    """Steps that it has already made, according to its state; 0 for a fresh optimizer."""

    def kind_of(self, group: ParamGroup) -> str:
        """Class of the optimizer that steps this group."""
        return group.optimizer or self.name


class UnregisteredLeaf(msgspec.Struct, frozen=True, kw_only=True):
    """A trainable tensor of the pass that is neither a parameter of the model nor part of the batch."""

    value: int
    in_optimizer: bool


class Trace(NotebookCard, frozen=True, kw_only=True):
    """Every op of one forward and backward pass: what it was, what it read and wrote, and its statistics."""

    schema: str = TRACE_SCHEMA
    model: str
    torch: str
    device: str
    training: bool
    optimizer: Optimizer | None
    loss: float | None
    loss_value: int | None
    """Id of the value that is the loss; None if there was no backward pass."""
    ops: tuple[Op, ...]
    values: tuple[Value, ...]
    parameters: tuple[Parameter, ...]
    modules: tuple[Module, ...]
    gaps: tuple[Gap, ...]
    exits: tuple[GraphExit, ...] = ()
    """Where tensors left the graph, in order of execution."""
    unregistered: tuple[UnregisteredLeaf, ...] = ()

    def to_json(self) -> str:
        return encode(self)

    @classmethod
    def from_json(cls, text: str) -> Trace:
        return decode(text, cls, TRACE_SCHEMA)

    def __repr__(self) -> str:
        return f"<Trace of {self.model!r}: ops={len(self.ops)}, values={len(self.values)}, loss={self.loss}>"
