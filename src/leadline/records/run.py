"""A watched training run: what is being trained, what is measured at each step, what was noticed and done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec

from leadline.errors import SchemaError
from leadline.records.codec import encode, parse
from leadline.records.finding import Severity

RUN_SCHEMA = "leadline.run/1"

EventKind = Literal["resume", "skipped step", "intervention", "crash", "non-finite", "sample", "warning"]

NonFiniteMetric = Literal["loss", "gradient", "update", "weight"]

N = TypeVar("N", "Alert", "Event", "RunInfo")


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is being trained, and how it is watched; one a run file."""

    schema: str = RUN_SCHEMA
    id: str = ""
    """Made by the writer for a new run. Given, a file that holds another id is refused."""
    started: float = 0.0
    """Seconds since 1970; set by the writer."""
    leadline: str = ""
    """The version that wrote it; set by the writer."""
    model: str = ""
    optimizer: str = ""
    parameters: int = 0
    """Count of trainable numbers in the model."""
    budget: float | None = None
    """Share of the step time that watching may take; None: no limit."""
    world_size: int = 1
    rank: int = 0
    note: str = ""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """Something that went wrong during training, or that is over."""

    code: str
    name: str
    severity: Severity
    message: str
    action: str = ""
    where: str = ""
    layers: tuple[int, int] | None = None
    """First and last entry of the axis it is about; None: the whole model."""
    since: int
    """First step at which it is seen in the numbers; `step` is when it was told."""
    step: int
    trend: float | None = None
    """Relative change a step of what it watches; None: no trend."""
    forecast: str = ""
    evidence: dict[str, float] = {}
    rank: int = 0
    state: Literal["raised", "cleared"] = "raised"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened or was done at a step, and is no verdict."""

    step: int
    time: float
    """Seconds since 1970."""
    kind: EventKind
    message: str
    data: dict[str, Any] = {}
    """JSON values."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one step: of the whole model, and one a layer or parameter."""

    step: int
    scalars: dict[str, float]
    vectors: dict[str, Sequence[float]] = {}


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """How a training went, in short: what a report of a run or of a log says instead of one pass."""

    source: str
    """"run file", "CSV" or "TensorBoard"."""
    steps: int
    """How many steps have numbers."""
    first_step: int
    last_step: int
    first_loss: float | None
    """None: no loss was recorded."""
    last_loss: float | None
    state: str = ""
    """Of a run file: writing, ended (by which error, if the loop died of one) or broken off."""
    alarms: int = 0
    """How many alarms had the numbers they need."""

    @property
    def seen(self) -> int:
        """How many steps there were, from the first recorded one to the last."""
        return self.last_step - self.first_step + 1 if self.steps else 0


class StepScalars(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one step before the end."""

    step: int
    scalars: dict[str, float]


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was on its way out of line before it broke."""

    what: str
    """The number and where: "update of layers.3.weight"."""
    factor: float
    """Its last finite value over its median before."""
    since: int
    """The step from which it stayed above twice its median."""


class FirstCause(msgspec.Struct, frozen=True, kw_only=True):
    """Where the first number that is none appeared in a run."""

    step: int
    metric: NonFiniteMetric
    """What was not finite first, in the order in which a step makes them."""
    where: str
    layers: tuple[int, int] | None = None
    op: str = ""
    """The op that made it, where a trace of that step saw it."""
    sentence: str
    before: tuple[StepScalars, ...]
    """The last steps before, oldest first."""
    suspects: tuple[Suspect, ...]
    """What grew before, the strongest first."""
    margin: float | None = None
    """How many times the largest number of the last good trace fits below its dtype's limit."""
    last_good: int | None = None
    """Step of the last good trace."""


def note_to_json(note: RunInfo | Alert | Event) -> str:
    """Strict JSON; NaN and infinities by name."""
    return encode(note)


def note_from_json(text: str, kind: type[N]) -> N:
    """What `note_to_json` wrote. Raises SchemaError if the text is damaged."""
    try:
        return msgspec.convert(parse(text), kind, strict=False)
    except (msgspec.ValidationError, UnicodeError, TypeError, SchemaError) as error:
        raise SchemaError(f"damaged {kind.__name__} in a run file: {error}") from None
