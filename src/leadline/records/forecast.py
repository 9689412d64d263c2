"""The Forecast: how a step and the signal change with depth, how deep that goes, and what follows."""

from __future__ import annotations

from typing import Literal

import msgspec

from leadline.records.codec import decode, encode
from leadline.records.display import NotebookCard

FORECAST_SCHEMA = "leadline.forecast/1"

FLAT = 0.1  # ours: the accuracy that is asked of an exponent
WIDE = 0.5  # derived: half a power separates the laws of the known schemes; a wider interval cannot tell them apart

Cause = Literal["promise", "step", "forward", "backward", "non-finite"]


class DepthPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One network of the family, measured at its first step."""

    depth: int
    seed: int
    parameters: int
    blocks: int
    loss: float
    grad_square: float
    r"""$\lVert g \rVert^2$ over the parameters of the repeated blocks; of the whole network where there are none."""
    loss_change: float
    """Predicted change of the loss by the step of these."""
    function_change: float | None
    """rms change of the outputs by the step of these, infinitesimal and scaled up to the whole one."""
    total_loss_change: float
    """Predicted change of the loss by the whole step, ends (embedding, head) included."""
    total_function_change: float | None
    ratio: float | None
    """Measured over predicted change of the loss, of the whole step."""
    parting: float | None
    """The safe rate over the rate: the multiple of a sustained step at which measured and predicted change differ by
    half."""
    parting_is_bound: bool
    forward_e_folds: float | None
    """Natural logarithm of the change of the forward second moment over the blocks, without the head."""
    backward_e_folds: float | None
    """The same for the squared gradient, towards the input."""
    normalised: bool


class Exponent(msgspec.Struct, frozen=True, kw_only=True):
    """$p$ in quantity ~ depth$^p$: mean over seeds with a 95 % interval (None with a single seed)."""

    value: float
    low: float | None
    high: float | None
    seeds: int
    depths: tuple[int, ...]
    """Those the slope was fitted on."""

    @property
    def verdict(self) -> Literal["grows", "falls", "flat", "unclear"]:
        """What the interval allows to say; without one, the value alone."""
        if self.low is None or self.high is None:
            return "flat" if abs(self.value) < FLAT else "grows" if self.value > 0 else "falls"
        if -WIDE < self.low <= 0 <= self.high < WIDE or abs(self.value) < FLAT > self.high - self.low:
            return "flat"
        if self.low <= 0 <= self.high:
            return "unclear"
        return "grows" if self.value > 0 else "falls"


class DepthLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A depth beyond which something gives way."""

    cause: Cause
    depth: float
    low: float | None
    high: float | None
    extrapolated: bool
    """It lies outside of the depths that were measured."""
    message: str


class Forecast(NotebookCard, frozen=True, kw_only=True):
    """What `leadline.forecast` returns: exponents by quantity, limits, the depth they allow, and advice in words."""

    schema: str = FORECAST_SCHEMA
    model: str
    optimizer: str
    lr: float | None
    depths: tuple[int, ...]
    seeds: int
    from_one_model: bool
    """Extrapolated from the blocks of a single model, not measured on several depths."""
    points: tuple[DepthPoint, ...]
    exponents: dict[str, Exponent]
    limits: tuple[DepthLimit, ...]
    max_depth: int | None
    """The deepest network of this family that is expected to train at this rate, from the first step on at the full
    rate; None: no limit in sight, or `undecided`."""
    max_depth_low: float | None
    max_depth_high: float | None
    """95 % interval over seeds; also of a depth that is undecided."""
    safe_depth: int | None
    """The deepest one whose first step also does what its gradient promises; None: no limit in sight."""
    advice: tuple[str, ...]
    undecided: bool = False
    """There is a limit, but the seeds disagree too much to say at which depth."""

    def to_json(self) -> str:
        return encode(self)

    @classmethod
    def from_json(cls, text: str) -> Forecast:
        return decode(text, cls, FORECAST_SCHEMA)
