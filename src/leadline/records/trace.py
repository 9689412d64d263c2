"""The Trace: every op of one forward and backward pass, without torch."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from leadline.records.codec import decode, encode

TRACE_SCHEMA = "leadline.trace/2"

Phase = Literal["forward", "loss"]
SourceKind = Literal["input", "target", "parameter", "buffer", "constant"]

CHANGED_THROUGH_VIEW = "changed in place through a view"
"""The reason in `Value.unobserved` of a tensor that an op changed through a view of it."""


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of all elements of one tensor. NaN means: measured, and it was NaN."""

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


class Units(msgspec.Struct, frozen=True, kw_only=True):
    """Units (features or channels) of an activation, each judged over the whole batch."""

    count: int
    dead: int
    """Units that were exactly zero for every sample and position."""
    saturated: int | None = None
    """Units that were at a bound of the activation everywhere; None for unbounded activations."""


class Attended(msgspec.Struct, frozen=True, kw_only=True):
    r"""How a fused attention spreads, measured on a few rows of queries; $p$ are the weights of one row."""

    keys: int
    purity: float
    r"""Mean of $\sum p^2$: one over the number of keys if all get the same, 1 if one gets everything."""
    entropy: float
    r"""Mean of $-\sum p \ln p$, in nats."""
    logit_var: float
    """Mean variance over the keys of the logits of a row."""
    logit_max: float | None = None
    """Largest magnitude of a logit that no mask hides."""


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tensor of the pass: written by an op, or read from outside (then `source` and `name` say what)."""

    id: int
    shape: tuple[int, ...]
    dtype: str
    op: int | None = None
    source: SourceKind | None = None
    name: str = ""
    forward: Stats | None = None
    backward: Stats | None = None
    units: Units | None = None
    common_ms: float | None = None
    """Mean square over units of the unit's mean over samples and positions: what all of these have in common.

    Its share of the second moment is 1 if all samples are alike, and one over their number if they are independent.
    """
    attended: Attended | None = None
    """Of the output of a fused attention: how its queries spread over their keys."""
    unobserved: str = ""
    """Why there are no statistics, where one would expect them."""

    @property
    def floating(self) -> bool:
        return self.dtype.startswith(("float", "bfloat", "complex"))


class Op(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One torch call of the forward pass or the loss, in order of execution."""

    index: int
    name: str
    """Canonical name, without namespace, in-place mark or operator spelling: `x += y` is "add"."""
    callable: str
    """As PyTorch spells it: "torch.Tensor.add_"."""
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kind: str | None = None
    """The family in the op table ("weight", "norm", "add", ...); None: the table does not know this op."""
    module: str = ""
    """Path of the innermost module that was running; "" is the model itself."""
    call: int = 0
    """Which call of that module this was: 0 is the first."""
    phase: Phase = "forward"
    params: tuple[str, ...] = ()
    args: tuple[Any, ...] = ()
    """Positional arguments as they were passed, in JSON: tensors as "%7" (value 7), the rest as itself.

    A slice is {"slice": [start, stop, step]}, an ellipsis "...", a dtype its name, an infinity "Infinity"; what JSON
    cannot say is "?".
    """
    kwargs: dict[str, Any] = {}
    """Keyword arguments, in the same spelling."""
    forward_ms_predicted: float | None = None
    """By theory: the second moment of the first floating output; None: no prediction."""
    backward_ms_predicted: float | None = None
    """By theory: the second moment of that output's gradient."""
    band: float | None = None
    """Half-width of the prediction's finite-width band in e-folds, at two standard deviations."""


class Parameter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One parameter tensor with its gradient's statistics; the gradient is that of the loss, unscaled."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    """How the pass used it: "matrix", "conv", "embedding", "norm", "bias", "scalar" or "other"."""
    aliases: tuple[str, ...] = ()
    """Further names of the same tensor (tied weights)."""
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
    unobserved: str = ""
    init: str = ""
    """What the initialisers did, in words, where the model was built without weights."""
    clone_of: str = ""
    """An earlier parameter made of the same random numbers (a deep copy), where that is known."""

    @property
    def count(self) -> int:
        return math.prod(self.shape)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where a class or a function is written."""

    file: str
    """From the root of the repository, with forward slashes."""
    line: int


class Module(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One submodule: what it is and how often the pass called it."""

    path: str
    type: str
    calls: int
    aliases: tuple[str, ...] = ()
    container: bool = False
    """It only holds others (ModuleList and the like): there is nothing to call."""
    source: Source | None = None
    """Where its class is written, if that is a file of the user's own."""
    given: tuple[int | None, ...] = ()
    """The values among the positional arguments of its first call; None is one that no op had read or made yet."""
    returned: tuple[int | None, ...] = ()
    """The values that its first call returned."""


class Gap(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something the trace could not see, or saw only in part: what, where, why."""

    what: str
    why: str
    where: tuple[str, ...] = ()


class ParamGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters that an optimiser treats alike."""

    parameters: tuple[str, ...]
    """Names; a parameter that the model does not have is "?"."""
    lr: float | None
    weight_decay: float
    options: dict[str, Any]
    """Everything else the group says, as far as JSON can (momentum, betas, eps, ...)."""


class Optimizer(msgspec.Struct, frozen=True, kw_only=True):
    """The optimiser that the model is trained with."""

    name: str
    groups: tuple[ParamGroup, ...]
    steps: int
    """Steps it has made already, as far as its state tells; 0: fresh."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Every op of one forward and backward pass: what it was, what it read and wrote, and its statistics."""

    schema: str = TRACE_SCHEMA
    model: str
    torch: str
    device: str
    training: bool
    optimizer: Optimizer | None
    loss: float | None
    loss_value: int | None
    """Id of the value that is the loss; None if the pass was not run backward from one."""
    ops: tuple[Op, ...]
    values: tuple[Value, ...]
    parameters: tuple[Parameter, ...]
    modules: tuple[Module, ...]
    gaps: tuple[Gap, ...]

    def to_json(self) -> str:
        return encode(self)

    @classmethod
    def from_json(cls, text: str) -> Trace:
        return decode(text, cls, TRACE_SCHEMA)
