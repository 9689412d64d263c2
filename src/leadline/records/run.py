"""A watched training run: what is trained, what is measured at each step, alerts and events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec

from leadline.errors import SchemaError
from leadline.records.codec import encode, parse
from leadline.records.finding import Severity

RUN_SCHEMA = "leadline.run/1"

EventKind = Literal[
    "resume", "skipped step", "intervention", "crash", "non-finite", "sample", "recording", "warning"
]

NonFiniteMetric = Literal["loss", "gradient", "update", "weight"]

# The entry in an event's data that names what a report on the run cannot judge, and what it names.
GAP_KEY = "not checked"
INSIDE_OF_MODEL = "the inside of the model"

N = TypeVar("N", "Alert", "Event", "RunInfo")


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is trained and how it is watched; one per run file."""

    schema: str = RUN_SCHEMA
    id: str = ""
    """Set by the writer for a new run. If it is given, a file with another id is refused."""
    started: float = 0.0
    """Seconds since 1970; set by the writer."""
    leadline: str = ""
    """The version that wrote it; set by the writer."""
    model: str = ""
    optimizer: str = ""
    parameters: int = 0
    """Number of trainable elements of the model."""
    budget: float | None = None
    """Share of the step time that watching may use; None: no limit."""
    world_size: int = 1
    rank: int = 0
    note: str = ""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """Something that went wrong during training, or that has cleared."""

    code: str
    name: str
    severity: Severity
    message: str
    action: str = ""
    where: str = ""
    layers: tuple[int, int] | None = None
    """First and last block that it is about; None: the whole model."""
    since: int
    """First step at which the numbers show it; `step` is when the alert was raised."""
    step: int
    trend: float | None = None
    """Relative change per step of the watched quantity; None: no trend."""
    forecast: str = ""
    evidence: dict[str, float] = {}
    rank: int = 0
    state: Literal["raised", "cleared"] = "raised"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened or was done at a step, without a judgment."""

    step: int
    time: float
    """Seconds since 1970."""
    kind: EventKind
    message: str
    data: dict[str, Any] = {}
    """JSON values."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one step: scalars of the whole model, and vectors with one entry per layer or parameter."""

    step: int
    scalars: dict[str, float]
    vectors: dict[str, Sequence[float]] = {}


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A short account of a training run, for a report that is about a run or a log instead of one pass."""

    source: str
    """"run file", "CSV" or "TensorBoard"."""
    steps: int
    """Number of steps with recorded numbers."""
    first_step: int
    last_step: int
    first_loss: float | None
    """None: no loss was recorded."""
    last_loss: float | None
    state: str = ""
    """State of a run file: being written, ended (with the error, if there was one) or interrupted."""
    alarms: int = 0
    """Number of run checks that had the numbers they need."""
    progress: str = ""
    """What the losses say about whether the run learned, as a clause; "" if it has too few losses."""

    @property
    def seen(self) -> int:
        """Number of steps from the first recorded one to the last."""
        return self.last_step - self.first_step + 1 if self.steps else 0


class StepScalars(msgspec.Struct, frozen=True, kw_only=True):
    """The scalars of one step before the first non-finite number."""

    step: int
    scalars: dict[str, float]


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity that grew before the first non-finite number."""

    what: str
    """The quantity and where it was measured: "update of layers.3.weight"."""
    factor: float
    """Its last finite value over its earlier median."""
    since: int
    """The step from which it stayed above twice its median."""


class FirstCause(msgspec.Struct, frozen=True, kw_only=True):
    """Where the first non-finite number appeared in a run."""

    step: int
    metric: NonFiniteMetric
    """What became non-finite first, in the order in which a step computes them."""
    where: str
    layers: tuple[int, int] | None = None
    op: str = ""
    """The op that produced it, if that step was traced."""
    sentence: str
    before: tuple[StepScalars, ...]
    """The last steps before it, oldest first."""
    suspects: tuple[Suspect, ...]
    """Quantities that grew before it, the fastest first."""
    margin: float | None = None
    """Limit of the dtype over the largest number in the last good trace."""
    last_good: int | None = None
    """Step of the last good trace."""


def note_to_json(note: RunInfo | Alert | Event) -> str:
    """Return strict JSON, with NaN and infinities by name."""
    return encode(note)


def note_from_json(text: str, kind: type[N]) -> N:
    """Return what `note_to_json` wrote. Raises SchemaError if the text is damaged."""
    try:
        return msgspec.convert(parse(text), kind, strict=False)
    except (msgspec.ValidationError, UnicodeError, TypeError, SchemaError) as error:
        raise SchemaError(f"damaged {kind.__name__} in a run file: {error}") from None
