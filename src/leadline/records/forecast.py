"""The Forecast: how the step and the signal change with depth, and how deep the network can be."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from leadline.records.codec import decode, encode
from leadline.records.display import NotebookCard

FORECAST_SCHEMA = "leadline.forecast/1"

# Heuristic: the accuracy that is required of an exponent.
MAX_FLAT_EXPONENT = 0.1
# Derived: half a power separates the laws of the known schemes; a wider interval cannot tell them apart.
MAX_FLAT_INTERVAL = 0.5

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
    """Predicted change of the loss if these parameters make the step."""
    function_change: float | None
    """rms change of the outputs if these make an infinitesimal step, scaled to the whole step."""
    total_loss_change: float
    """Predicted change of the loss by the whole step, including embedding and head."""
    total_function_change: float | None
    ratio: float | None
    """Measured over predicted change of the loss by the whole step."""
    parting: float | None
    """Safe learning rate over learning rate: the multiple of a sustained step at which measured and predicted change
    differ by half."""
    parting_is_bound: bool
    forward_e_folds: float | None
    """Natural logarithm of the change of the forward second moment over the blocks, without the head."""
    backward_e_folds: float | None
    """Natural logarithm of the change of the squared gradient over the blocks, toward the input."""
    normalized: bool


class Exponent(msgspec.Struct, frozen=True, kw_only=True):
    """$p$ in quantity ~ depth$^p$: mean over seeds with a 95 % interval (None with a single seed)."""

    value: float
    low: float | None
    high: float | None
    seeds: int
    depths: tuple[int, ...]
    """Depths that the slope was fitted to."""

    @property
    def verdict(self) -> Literal["grows", "falls", "flat", "unclear"]:
        """The trend that the interval supports; without an interval, that of the value."""
        trend: Literal["grows", "falls"] = "grows" if self.value > 0 else "falls"
        is_small = abs(self.value) < MAX_FLAT_EXPONENT
        if self.low is None or self.high is None:
            return "flat" if is_small else trend
        includes_zero = self.low <= 0 <= self.high
        is_narrow = self.low > -MAX_FLAT_INTERVAL and self.high < MAX_FLAT_INTERVAL
        if includes_zero and is_narrow:
            return "flat"
        if is_small and self.high - self.low < MAX_FLAT_EXPONENT:
            return "flat"
        return "unclear" if includes_zero else trend


class DepthLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A depth beyond which training fails, and why."""

    cause: Cause
    depth: float
    low: float | None
    high: float | None
    extrapolated: bool
    """It lies outside the measured depths."""
    message: str


class Forecast(NotebookCard, frozen=True, kw_only=True):
    """What `leadline.forecast` returns: exponents by quantity, limits, the depth that they allow, and advice."""

    schema: str = FORECAST_SCHEMA
    model: str
    optimizer: str
    lr: float | None
    depths: Annotated[tuple[int, ...], msgspec.Meta(min_length=1)]
    seeds: int
    from_one_model: bool
    """It is extrapolated from the blocks of one model, not measured at several depths."""
    points: tuple[DepthPoint, ...]
    exponents: dict[str, Exponent]
    limits: tuple[DepthLimit, ...]
    max_depth: int | None
    """Depth of the deepest network of this family that is expected to train at this learning rate without warmup;
    None: no limit was found, or `undecided`."""
    max_depth_low: float | None
    max_depth_high: float | None
    """95 % interval over seeds; also given if the depth is undecided."""
    safe_depth: int | None
    """Depth of the deepest network whose first step also does what its gradient predicts; None: no limit was found."""
    advice: tuple[str, ...]
    undecided: bool = False
    """There is a limit, but the seeds disagree too much to say at which depth."""

    def to_json(self) -> str:
        return encode(self)

    @classmethod
    def from_json(cls, text: str) -> Forecast:
        return decode(text, cls, FORECAST_SCHEMA)
