"""What Leadline knows, as frozen records without torch: a Trace, the Profile read off it, and Findings.

Every record survives JSON without loss. JSON has no NaN or infinity, so these travel as the strings "NaN",
"Infinity" and "-Infinity"; "not measured" is null, and is never the same as zero.
"""

from __future__ import annotations

import json
import math
from typing import Any, Literal, TypeVar

import msgspec

from leadline.errors import SchemaError

TRACE_SCHEMA = "leadline.trace/1"

Severity = Literal["info", "warning", "error"]
Verdict = Literal["trains", "poor", "fails", "undecided"]
Phase = Literal["forward", "loss"]
Direction = Literal["forward", "backward"]
SourceKind = Literal["input", "target", "parameter", "buffer", "constant"]
Placement = Literal["none", "pre", "post", "output", "sandwich", "pre+post", "post+output", "all"]


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
    ms: float | None = None
    norm: float | None = None
    grad_ms: float | None = None
    grad_norm: float | None = None
    grad_dot_weight: float | None = None
    """$\\langle g, w \\rangle$: zero where the loss does not depend on the scale of $w$."""
    grad_non_finite: int = 0
    unobserved: str = ""

    @property
    def count(self) -> int:
        return math.prod(self.shape)


class Module(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One submodule: what it is and how often the pass called it."""

    path: str
    type: str
    calls: int
    aliases: tuple[str, ...] = ()
    container: bool = False
    """It only holds others (ModuleList and the like): there is nothing to call."""


class Gap(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something the trace could not see, or saw only in part: what, where, why."""

    what: str
    why: str
    where: tuple[str, ...] = ()


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Every op of one forward and backward pass: what it was, what it read and wrote, and its statistics."""

    schema: str = TRACE_SCHEMA
    model: str
    torch: str
    device: str
    training: bool
    optimizer: str | None
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
    optimizer: str | None
    parameters: int
    trainable: int
    streams: tuple[Stream, ...]
    blocks: tuple[Block, ...]
    jumps: tuple[Jump, ...]
    anomalies: tuple[Anomaly, ...]
    backward_ran: bool


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


R = TypeVar("R")


def encode(record: msgspec.Struct) -> str:
    """The record as strict JSON (no bare NaN), with nothing lost."""
    return json.dumps(_spell(msgspec.to_builtins(record)), allow_nan=False, separators=(",", ":"))


def decode(text: str, kind: type[R], schema: str) -> R:
    """The record that `encode` wrote. Raises SchemaError if the text is damaged, foreign or too new."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(
            f"not JSON ({error}); was the file cut short or written by something else?"
        ) from None
    found = data.get("schema") if isinstance(data, dict) else None
    if found != schema:
        raise SchemaError(_wrong_schema(found, schema))
    try:
        return msgspec.convert(data, kind, strict=False)
    except msgspec.ValidationError as error:
        raise SchemaError(f"damaged {schema} record: {error}") from None


def _wrong_schema(found: object, schema: str) -> str:
    kind, _, version = schema.partition("/")
    if isinstance(found, str) and found.startswith(f"{kind}/"):
        return (
            f"this file has schema {found!r}; this version of leadline reads {kind} version {version}. "
            "Upgrade leadline, or write the file again."
        )
    return f"expected a record with schema {schema!r}, got {found!r}; is this another kind of file?"


def _spell(data: Any) -> Any:
    """`data` with every float that JSON cannot write replaced by its name."""
    if isinstance(data, float) and not math.isfinite(data):
        return "NaN" if math.isnan(data) else "Infinity" if data > 0 else "-Infinity"
    if isinstance(data, dict):
        return {key: _spell(item) for key, item in data.items()}
    if isinstance(data, list | tuple):
        return [_spell(item) for item in data]
    return data
